// Code for hosts and for GPUs.
#pragma once

#ifdef __CUDACC__
#define TECCL_BOTH __host__ __device__
#else
#define TECCL_BOTH
#endif
