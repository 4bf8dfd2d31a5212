// Rows of features onto a dense grid: the place of a row, and what a place holds.
//
// `owner` has, for each place, the row that fills it: of several rows at one place the last one, as in a loop of
// assignments; -1 where there is none.
namespace ytk_catalogue {

template <class T>
YTK_BODY T scattered(const T* features, const int32_t* owner, int64_t channels, int64_t cells, int64_t element) {
  // out [batch, channels, cells], owner [batch, cells]
  const int64_t cell = element % cells, channel = element / cells % channels, batch = element / cells / channels;
  const int32_t row = owner[batch * cells + cell];
  return row < 0 ? T(0.0f) : features[row * channels + channel];
}

}  // namespace ytk_catalogue
