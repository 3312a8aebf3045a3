"""The conversations of clients: what was said in them, and what is kept of them."""
