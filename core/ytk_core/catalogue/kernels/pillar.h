// Pillars lie on one layer of a sparse grid.
namespace ytk_catalogue {
#ifndef __CUDACC__

inline bool read_pillar_grid(const ytk_context* ctx, Grid* grid) {
  int64_t batch, size[2];
  if (!read_ints(ctx, "batch_size", &batch, 1) || !read_ints(ctx, "grid_size", size, 2)) return false;
  const int64_t shape[3] = {1, size[0], size[1]};
  return make_grid(batch, shape, grid);
}

#endif
}  // namespace ytk_catalogue
