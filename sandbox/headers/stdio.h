// NVRTC has what device code needs of <stdio.h> built in.
#pragma once
