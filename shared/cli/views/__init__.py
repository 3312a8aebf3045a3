"""What the terminal shows of a cluster: pure functions from reports to lines of text.

Every line is a `Text`, never markup: names and errors come from outside and may hold brackets.
"""
