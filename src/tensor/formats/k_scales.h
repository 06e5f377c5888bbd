// What encoders of the K formats share: the search for a group's scale (and minimum), and the
// twelve bytes that hold eight 6-bit scales and eight 6-bit minimums in Q4_K and Q5_K.
#pragma once

#include <cmath>
#include <cstdint>

#include "tensor/formats/f16.h"

namespace sluice {

// Bytes 0..3: scales 0..3, bytes 4..7: minimums 0..3, six bits each; bytes 8..11: low nibbles of
// scales and minimums 4..7, whose top two bits are those of bytes 0..7.
struct ScaleMin {
  int scale, min;
};

constexpr ScaleMin get_scale_min(const uint8_t* bytes, int i) {
  if (i < 4) return {bytes[i] & 63, bytes[i + 4] & 63};
  return {(bytes[i + 4] & 15) | bytes[i - 4] >> 6 << 4, bytes[i + 4] >> 4 | bytes[i] >> 6 << 4};
}

inline void put_scale_mins(const ScaleMin (&v)[8], uint8_t* bytes) {
  for (int i = 0; i < 4; ++i) {
    bytes[i] = static_cast<uint8_t>(v[i].scale | v[i + 4].scale >> 4 << 6);
    bytes[i + 4] = static_cast<uint8_t>(v[i].min | v[i + 4].min >> 4 << 6);
    bytes[i + 8] = static_cast<uint8_t>((v[i + 4].scale & 15) | (v[i + 4].min & 15) << 4);
  }
}

// The scale s for which s * round(x / s), quants in [-most, most - 1], is nearest to the 16
// elements in the squared error weighted by x². Candidates map the largest element to -most ± 0.9;
// each gets its least-squares scale.
inline float best_signed_scale(const float* x, int most) {
  float largest = 0;
  for (int i = 0; i < 16; ++i) {
    if (std::fabs(x[i]) > std::fabs(largest)) largest = x[i];
  }
  if (!(std::fabs(largest) > 1e-15f) || !std::isfinite(largest)) return 0;
  float best = largest / static_cast<float>(-most);
  float best_gain = 0;
  for (int step = -9; step <= 9; ++step) {
    const float inverse = -(static_cast<float>(most) + 0.1f * static_cast<float>(step)) / largest;
    float xq = 0;
    float qq = 0;
    for (int i = 0; i < 16; ++i) {
      const auto q = static_cast<float>(round_within(x[i] * inverse, -most, most - 1));
      const float weight = x[i] * x[i];
      xq += weight * x[i] * q;
      qq += weight * q * q;
    }
    if (qq > 0 && xq * xq > best_gain * qq) {  // the error falls by xq² / qq
      best = xq / qq;
      best_gain = xq * xq / qq;
    }
  }
  return best;
}

// value = scale * q - min, both at least 0.
struct Affine {
  float scale, min;
};

// Least squares of w (x - scale q + min)² over given codes q, with scale, min >= 0.
// sums: of w, w q, w q², w x, w x q.
inline Affine fit_affine(double w, double wq, double wqq, double wx, double wxq) {
  const double det = w * wqq - wq * wq;
  double scale = det > 0 ? (w * wxq - wq * wx) / det : 0;
  double min = det > 0 ? (wq * wxq - wqq * wx) / det : 0;
  if (!(min > 0)) {
    min = 0;
    scale = wqq > 0 ? wxq / wqq : 0;
  }
  return {static_cast<float>(scale > 0 ? scale : 0), static_cast<float>(min)};
}

// The scale and minimum of n elements with codes 0 .. levels. Starts from the range (0 included);
// tries steps somewhat finer and coarser, fits scale and minimum to the codes each gives, and keeps
// what has the least squared error. Large elements weigh more.
inline Affine best_affine(const float* x, int n, int levels) {
  float lowest = 0;
  float highest = x[0];
  float squares = 0;
  for (int i = 0; i < n; ++i) {
    lowest = std::fmin(lowest, x[i]);
    highest = std::fmax(highest, x[i]);
    squares += x[i] * x[i];
  }
  const float range = highest - lowest;
  if (!(range > 1e-15f) || !std::isfinite(squares)) {
    return {0, std::isfinite(lowest) ? -lowest : 0};
  }
  const float typical = std::sqrt(squares / static_cast<float>(n));
  Affine best{range / static_cast<float>(levels), -lowest};
  double best_error = INFINITY;
  for (int step = -10; step <= 10; ++step) {
    const float inverse = (static_cast<float>(levels) + 0.1f * static_cast<float>(step)) / range;
    double w = 0, wq = 0, wqq = 0, wx = 0, wxq = 0;
    for (int i = 0; i < n; ++i) {
      const double weight = typical + std::fabs(x[i]);
      const int q = round_within((x[i] - lowest) * inverse, 0, levels);
      w += weight;
      wq += weight * q;
      wqq += weight * q * q;
      wx += weight * x[i];
      wxq += weight * x[i] * q;
    }
    const Affine fit = fit_affine(w, wq, wqq, wx, wxq);
    const float per_step = fit.scale > 0 ? 1 / fit.scale : 0;
    double error = 0;
    for (int i = 0; i < n; ++i) {
      const int q = round_within((x[i] + fit.min) * per_step, 0, levels);
      const double off = fit.scale * static_cast<float>(q) - fit.min - x[i];
      error += (typical + std::fabs(x[i])) * off * off;
    }
    if (error < best_error) {
      best = fit;
      best_error = error;
    }
  }
  return best;
}

// Eight scales and minimums as 6-bit multiples of two halves.
struct SuperScales {
  uint16_t d, dmin;  // f16
  ScaleMin of[8];
};

inline SuperScales super_scales(const Affine (&group)[8]) {
  float scale = 0;
  float min = 0;
  for (const Affine& a : group) {
    scale = std::fmax(scale, a.scale);
    min = std::fmax(min, a.min);
  }
  SuperScales s{f32_to_f16(scale / 63), f32_to_f16(min / 63), {}};
  const float d = f16_to_f32(s.d);
  const float dmin = f16_to_f32(s.dmin);
  for (int g = 0; g < 8; ++g) {
    s.of[g].scale = d > 0 ? round_within(group[g].scale / d, 0, 63) : 0;
    s.of[g].min = dmin > 0 ? round_within(group[g].min / dmin, 0, 63) : 0;
  }
  return s;
}

// Rounding scale and minimum to six bits each on its own is not the best pair: of the nine around
// it, the one with the least squared error.
inline ScaleMin nearest_pair(const float* x, int n, int levels, const SuperScales& s, ScaleMin at) {
  const float d = f16_to_f32(s.d);
  const float dmin = f16_to_f32(s.dmin);
  ScaleMin best = at;
  float least = INFINITY;
  for (int scale = at.scale > 0 ? at.scale - 1 : 0; scale <= at.scale + 1 && scale <= 63; ++scale) {
    for (int min = at.min > 0 ? at.min - 1 : 0; min <= at.min + 1 && min <= 63; ++min) {
      const Affine a{d * static_cast<float>(scale), dmin * static_cast<float>(min)};
      const float per_step = a.scale != 0 ? 1 / a.scale : 0;
      float error = 0;
      for (int i = 0; i < n; ++i) {
        const int q = round_within((x[i] + a.min) * per_step, 0, levels);
        const float off = a.scale * static_cast<float>(q) - a.min - x[i];
        error += off * off;
      }
      if (error < least) {
        least = error;
        best = {scale, min};
      }
    }
  }
  return best;
}

// Codes of n elements given the scale and minimum that decoding will use.
inline void affine_codes(const float* x, int n, Affine a, int levels, uint8_t* q) {
  const float per_step = a.scale != 0 ? 1 / a.scale : 0;
  for (int i = 0; i < n; ++i) {
    q[i] = static_cast<uint8_t>(round_within((x[i] + a.min) * per_step, 0, levels));
  }
}

}  // namespace sluice
