"""The page of `vqshield app`: shield a picture, attack it, and see how much the shield protects.

choices     which defense, with which settings, and the classifier behind it
subjects    the picture that is looked at: one of the bundled ones, or an upload within limits
shielding   one draw for the eyes, twenty for the classes
attacking   the same picture under attack
recorded    what was measured of each defense
fragments   all of that as HTML
handlers    what the page's events call: values in, values out, nothing kept between calls
page        the layout, the only file that needs Gradio
"""
