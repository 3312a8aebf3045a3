"""The protocol between agent and engine: orders and facts over a socket pair, and the activity
record in shared memory."""
