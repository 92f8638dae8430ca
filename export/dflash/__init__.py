"""The DFlash drafter as torch modules."""
