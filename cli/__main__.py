"""`python -m dflash_compile.cli`: the same as the `dflash-compile` script, for a Python whose scripts are not on the
path.
"""

from .main import entry

if __name__ == "__main__":
    entry()
