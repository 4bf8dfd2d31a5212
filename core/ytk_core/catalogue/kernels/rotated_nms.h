// Non-maximum suppression of rotated boxes (centre x, centre y, width, height, angle in radians from the x to the y axis).
//
// Boxes are taken by falling score, of equal scores the first one; a box is kept unless it overlaps a kept one by more
// than the threshold.
namespace ytk_catalogue {

struct Point {
  float x, y;
};

// Corners in the order of the angle, about the origin `at`: small coordinates keep the precision of the areas.
YTK_BODY void corners_of(const float* box, Point at, Point* corners) {
  const float c = cosf(box[4]) * 0.5f, s = sinf(box[4]) * 0.5f;
  const float wx = c * box[2], wy = s * box[2], hx = -s * box[3], hy = c * box[3];
  const float x = box[0] - at.x, y = box[1] - at.y;
  corners[0] = {x - wx - hx, y - wy - hy};
  corners[1] = {x + wx - hx, y + wy - hy};
  corners[2] = {x + wx + hx, y + wy + hy};
  corners[3] = {x - wx + hx, y - wy + hy};
}

YTK_BODY float cross(Point a, Point b, Point p) { return (b.x - a.x) * (p.y - a.y) - (b.y - a.y) * (p.x - a.x); }

// Area of the intersection over area of the union; 0 of boxes without area. One box is cut by each side of the other
// (Sutherland and Hodgman): at most 8 corners are left.
YTK_BODY float rotated_iou(const float* a, const float* b) {
  const float area_a = a[2] * a[3], area_b = b[2] * b[3];
  if (!(a[2] > 0.0f && a[3] > 0.0f && b[2] > 0.0f && b[3] > 0.0f)) return 0.0f;
  Point polygon[8], cut[8], sides[4];
  const Point middle = {a[0], a[1]};
  corners_of(a, middle, polygon);
  corners_of(b, middle, sides);
  int count = 4;
  for (int side = 0; side < 4 && count > 0; ++side) {
    const Point from = sides[side], to = sides[(side + 1) % 4];
    int kept = 0;
    for (int k = 0; k < count; ++k) {
      const Point here = polygon[k], next = polygon[(k + 1) % count];
      const float d0 = cross(from, to, here), d1 = cross(from, to, next);
      if (d0 >= 0.0f && kept < 8) cut[kept++] = here;
      if ((d0 >= 0.0f) != (d1 >= 0.0f) && kept < 8) {
        const float t = d0 / (d0 - d1);
        cut[kept++] = {here.x + t * (next.x - here.x), here.y + t * (next.y - here.y)};
      }
    }
    count = kept;
    for (int k = 0; k < count; ++k) polygon[k] = cut[k];
  }
  float twice = 0.0f;
  for (int k = 1; k + 1 < count; ++k) twice += cross(polygon[0], polygon[k], polygon[k + 1]);
  const float shared = fmaxf(0.5f * twice, 0.0f);
  return shared / (area_a + area_b - shared);
}

// How many boxes come before box `k`: its place in the order of falling scores.
template <class T>
YTK_BODY int32_t place_in_order(const T* scores, int64_t boxes, int64_t k) {
  const float own = to_float(scores[k]);
  int32_t before = 0;
  for (int64_t other = 0; other < boxes; ++other) {
    const float score = to_float(scores[other]);
    // A score that is no number comes last, after the others in their order.
    const bool first = own != own ? (score == score || other < k) : (score > own || (score == own && other < k));
    before += first && other != k;
  }
  return before;
}

}  // namespace ytk_catalogue
