"""Lists of prompts and large `n`: one request per part, one stream to the client."""
