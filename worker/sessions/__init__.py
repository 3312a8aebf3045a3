"""Sessions: the messages of conversations, and how much of them engines have cached."""
