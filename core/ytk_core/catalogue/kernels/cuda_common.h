// What the launchers of the catalogue's CUDA kernels share.
namespace ytk_catalogue {

constexpr int kThreads = 256;

#ifdef __CUDACC__

YTK_BODY int64_t thread_index() { return blockIdx.x * int64_t(blockDim.x) + threadIdx.x; }

#else

// Blocks of kThreads for that many elements; a launch of no blocks is an error, so there is always one.
inline ytk::Extent3 blocks_for(int64_t count) {
  return {static_cast<uint32_t>(std::max<int64_t>(1, (count + kThreads - 1) / kThreads))};
}

inline bool is_half(const ytk_tensor& tensor) { return tensor.dtype == YTK_FLOAT16; }

#endif

}  // namespace ytk_catalogue
