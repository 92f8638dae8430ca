"""Source code for apps: a small package in Swift, or one Python file, that loads a bundle and runs the greedy
draft–verify loop.
"""
