/* Stands for the driver's libcuda.so.1 where there is none: to link against, and to load a plugin in the probe. Every call
 * fails with CUDA_ERROR_NO_DEVICE. */
#define STUB(name) int name(void) { return 100; }
STUB(cuCtxGetCurrent)
STUB(cuModuleLoadData)
STUB(cuModuleGetFunction)
STUB(cuFuncSetAttribute)
STUB(cuLaunchKernel)
