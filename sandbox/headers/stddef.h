// NVRTC has what device code needs of <stddef.h> built in.
#pragma once
