"""C functions of published data sets as translation tasks: parse, bound every index, and write a torch reference."""
