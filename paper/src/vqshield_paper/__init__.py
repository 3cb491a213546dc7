"""The paper reproduced: its tables and figures, and the studies behind the documentation."""
