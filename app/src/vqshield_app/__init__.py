"""The page of `vqshield app`: shield a picture, attack it, and see how much the shield protects.

choices      which defense, with which settings, its classifier, and what was measured of it
subjects     the picture: a bundled one, or an upload within limits
experiments  shield the picture and attack it
fragments    the results as HTML
handlers     what the page's events call: values in, values out, nothing kept between calls
page         the layout, the only file that needs Gradio
"""
