"""`vqshield app` as a Space: the same page, listening where a Space is expected to."""

from vqshield_app.page import serve

serve(host="0.0.0.0", port=7860)
