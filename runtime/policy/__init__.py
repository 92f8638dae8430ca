"""Who guesses the next tokens, and how many rows are verified: choices of speed only, the text is the same."""
