"""Views of a cluster for the terminal: pure functions from reports to lines of text.

Every line is a `Text`, never markup, because names and errors from outside may contain brackets.
"""
