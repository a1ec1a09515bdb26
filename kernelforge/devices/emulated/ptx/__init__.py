"""PTX as the emulator reads it: parsed, inlined, with a control-flow graph per kernel."""
