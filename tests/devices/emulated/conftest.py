"""Make the helpers of this folder importable, whatever pytest's import mode."""
