// What TensorRT's headers need of the CUDA runtime: the names of two handles. Plugins use the driver alone, so that a build needs
// no CUDA toolkit (and none of its host headers, which other packages hold in every version of CUDA).
#ifndef YTK_CUDA_TYPES_H
#define YTK_CUDA_TYPES_H

typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;

#endif
