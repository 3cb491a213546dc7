"""Image files: reading them safely, and quantizing whole folders of them."""
