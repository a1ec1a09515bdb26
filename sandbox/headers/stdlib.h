// NVRTC has what device code needs of <stdlib.h> built in.
#pragma once
