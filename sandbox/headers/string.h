// NVRTC has what device code needs of <string.h> built in.
#pragma once
