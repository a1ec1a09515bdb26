// NVRTC has what device code needs of <assert.h> built in.
#pragma once
