"""``python -m kernelforge`` is the command ``kernelforge``."""

from kernelforge.cli.main import main

if __name__ == "__main__":
    main()
