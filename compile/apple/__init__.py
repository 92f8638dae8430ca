"""Graphs of static width in plain torch operators, with every layer's cache packed into one tensor: what Apple's
converters take.
"""
