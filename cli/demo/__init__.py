"""What `dflash-compile demo` does, without the drawing: the bundle, the prompts, the comparison."""
