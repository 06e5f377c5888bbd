// Our own kernels for products, each way of cutting the work, against sums in double: odd sizes,
// outputs that start as NaN, memory behind them that must stay as it is. And that a row has the
// same bits whatever the number of rows, where the kernels promise it. Of int8 all bits are known.
//   cuda_product_test [--small | --time [ROWS...]]
// --small: fewer sizes. Under a sanitizer SLUICE_TEST_SLICE leaves a part of all checks.
// --time: microseconds (and TFLOP/s) of cuBLASLt, narrow() and wide() for the shapes of Qwen2.5-7B,
// each way to cut them on its own
#include <cublasLt.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "backend/cuda/elementwise.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/skinny.cuh"
#include "backend/cuda/target.cuh"
#include "backend/cuda/wide_persistent.cuh"
#include "backend/cuda/wide_shares.cuh"
#include "base/test_slice.h"

namespace sluice::cuda {
namespace {

int checks = 0, failures = 0;

TestSlice slice;  // of all checks those that run

template <typename T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& v) : num_(v.size()) {
    check(cudaMalloc(&data_, num_ * sizeof(T)), "memory");
    check(cudaMemcpy(data_, v.data(), num_ * sizeof(T), cudaMemcpyHostToDevice), "upload");
  }
  ~OnDevice() { cudaFree(data_); }
  OnDevice(const OnDevice&) = delete;
  T* data() const { return static_cast<T*>(data_); }
  std::vector<T> get() const {
    std::vector<T> v(num_);
    check(cudaMemcpy(v.data(), data_, num_ * sizeof(T), cudaMemcpyDeviceToHost), "download");
    return v;
  }

 private:
  void* data_ = nullptr;
  size_t num_;
};

template <typename T>
T rounded(float v) {
  return T(v);
}
template <typename T>
float value(T v) {
  return static_cast<float>(v);
}

template <typename T>
std::vector<T> random_values(int64_t num, unsigned seed, float size) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0, size);
  std::vector<T> v;
  for (int64_t i = 0; i < num; ++i) v.push_back(rounded<T>(normal(rng)));
  return v;
}

// Memory for blocks that begin tiles for each other.
Handover handover() {
  static const Handover h = [] {
    Handover made;
    made.bytes = 64 << 20;
    check(cudaMalloc(&made.sums, static_cast<size_t>(made.bytes)), "handover");
    check(cudaMalloc(&made.flags, Handover::kFlagBytes), "handover");
    check(cudaMemset(made.flags, 0, Handover::kFlagBytes), "handover");
    return made;
  }();
  return h;
}

struct Case {
  int64_t n, rows, cols;
  bool bias, f32_out;
};

// W: the weights' type; X: the activations'; with W in f8 narrow() reads x in f8 too.
template <typename W, typename X>
class Product {
 public:
  Product(const Case& c, DType weight_type, DType type)
      : c_(c),
        type_(type),
        w_(random_values<W>(c.rows * c.cols, 1, 0.5f)),
        bias_(random_values<X>(c.rows, 2, 1)),
        scale_(random_values<float>(c.rows, 3, 1)),
        dw_(w_),
        dbias_(bias_),
        dscale_(scale_) {
    bool f8 = weight_type == DType::f8;
    weight_ = {dw_.data(),
               weight_type,
               c.rows,
               c.cols,
               c.bias ? dbias_.data() : nullptr,
               type,
               nullptr,
               f8 ? dscale_.data() : nullptr};
  }

  // x [n, cols] of type In, each row times x_scale.
  template <typename In, typename Run>
  void compare(const char* what, DType x_type, bool scaled, Run&& run) {
    if (!slice.take()) return;
    const int64_t stride = c_.cols + (x_type == DType::f8 ? 0 : 16);
    std::vector<In> x = random_values<In>(c_.n * stride, 4, 1);
    std::vector<float> x_scale(static_cast<size_t>(c_.n), 1);
    if (scaled) x_scale = random_values<float>(c_.n, 5, 1);
    OnDevice<In> dx(x);
    OnDevice<float> dx_scale(x_scale);
    const int64_t out_stride = c_.rows + 3;
    std::vector<float> poison(static_cast<size_t>(c_.n * out_stride));
    std::memset(poison.data(), 0xff, poison.size() * sizeof(float));  // NaN of every type
    OnDevice<float> out(poison);  // large enough for either type
    Tensor to{out.data(), c_.f32_out ? DType::f32 : type_, c_.n, c_.rows, out_stride};
    run(to, Tensor{dx.data(), x_type, c_.n, c_.cols, stride}, dx_scale.data());
    check(cudaDeviceSynchronize(), what);
    std::vector<float> got = out.get();
    std::vector<double>& want = want_[x_type];
    if (want.empty()) want = reference(x, stride, x_scale);
    double difference = 0, size = 0;
    bool behind = true;
    for (int64_t t = 0; t < c_.n; ++t) {
      for (int64_t r = 0; r < out_stride; ++r) {
        auto at = static_cast<size_t>(t * out_stride + r);
        double y = c_.f32_out ? got[at] : value(reinterpret_cast<const X*>(got.data())[at]);
        if (r >= c_.rows) {
          behind = behind && std::isnan(y);
          continue;
        }
        double right = want[static_cast<size_t>(t * c_.rows + r)];
        difference += (y - right) * (y - right);
        size += right * right;
      }
    }
    double off = std::sqrt(difference / size);
    double most = c_.f32_out            ? (weight_.type == DType::f8 ? 5e-4 : 1e-4)
                  : type_ == DType::f16 ? 1e-3
                                        : 6e-3;
    ++checks;
    if (!(off < most) || !behind) {
      ++failures;
      std::printf("FAIL %s: n %ld, %ld x %ld, bias %d, f32 out %d: off by %g, behind %d\n", what,
                  static_cast<long>(c_.n), static_cast<long>(c_.rows), static_cast<long>(c_.cols),
                  c_.bias, c_.f32_out, off, behind);
    }
  }

  void run_wide() {
    if (weight_.scale) {
      GemmWeight bare = weight_;
      bare.scale = nullptr;
      ++checks;
      if (can_wide({dw_.data(), weight_.type, c_.n, c_.cols, c_.cols}, bare)) {
        ++failures;
        std::printf("FAIL wide takes codes without scales\n");
      }
    }
    for (int splits : kNarrowSplits) {
      // How many multiprocessors there are decides how the work is cut.
      int sms = 8 << splits % 3 * 2;
      std::string name =
          "wide, splits " + std::to_string(splits) + ", multiprocessors " + std::to_string(sms);
      const bool f8 = weight_.type == DType::f8;
      compare<W>(name.c_str(), weight_.type, f8, [&](Tensor out, Tensor x, const float* scale) {
        if (can_wide(x, weight_)) return wide(out, x, scale, weight_, splits, sms, nullptr);
        ++failures;
        std::printf("FAIL wide refuses\n");
      });
    }
  }

  // The bits of row `at` of x alone, and among others.
  void run_bits() {
    std::vector<W> x = random_values<W>(c_.n * c_.cols, 6, 1);
    OnDevice<W> dx(x);
    OnDevice<float> x_scale(random_values<float>(c_.n, 7, 1));
    std::vector<X> none(static_cast<size_t>(c_.n * c_.rows));
    int shared = 0;
    for (int splits : kNarrowSplits) {
      // width -1: narrow(), 0: wide(), else wide_persistent() with tiles of that width.
      auto product = [&](int64_t first, int64_t num, int sms, int width, int blocks = 0) {
        OnDevice<X> out(none);
        Tensor from{dx.data() + first * c_.cols, weight_.type, num, c_.cols, c_.cols};
        const float* scale = x_scale.data() + first;
        Tensor to{out.data(), type_, num, c_.rows, c_.rows};
        if (width > 0) {
          const Tensor weight{dw_.data(), weight_.type, c_.rows, c_.cols, c_.cols};
          wide_persistent(boxed_args(to, scale, weight_), from, weight, splits, sms, nullptr,
                          {width, blocks});
        } else if (width < 0) {
          narrow(to, from, scale, weight_, splits, true, nullptr);
        } else {
          wide(to, from, scale, weight_, splits, sms, nullptr);
        }
        check(cudaDeviceSynchronize(), "product");
        return out.get();
      };
      const std::vector<X> all = product(0, c_.n, 132, 0);
      auto expect_bits = [&](const std::vector<X>& some, int64_t first, int64_t num, int width) {
        ++checks;
        if (std::memcmp(some.data(), all.data() + first * c_.rows,
                        static_cast<size_t>(num * c_.rows) * sizeof(X)) == 0)
          return;
        ++failures;
        std::printf("FAIL bits: %ld rows from %ld, of %ld x %ld, splits %d, width %d\n",
                    static_cast<long>(num), static_cast<long>(first), static_cast<long>(c_.rows),
                    static_cast<long>(c_.cols), splits, width);
      };
      for (int64_t num : {1, 8, 9, 16, 31, 64, 65, 100, 128, 129, 192, 193, 300}) {
        for (int64_t first : {int64_t{0}, c_.n - num}) {
          if (!slice.take()) continue;
          if (num <= kMaxNarrow) expect_bits(product(first, num, 132, -1), first, num, -1);
          expect_bits(product(first, num, num % 2 == 0 ? 8 : 132, 0), first, num, 0);
        }
      }
      // Every way to spread it over clusters.
      for (const Spread& s :
           {Spread{2, 1, 32},        Spread{3, 1, 32},       Spread{4, 1, 32},
            Spread{4, 2, 32},        Spread{2, 1, 64},       Spread{2, 1, 128},
            Spread{2, 1, 256},       Spread{3, 1, 64},       Spread{3, 1, 128},
            Spread{3, 1, 256},       Spread{4, 1, 64},       Spread{4, 1, 128},
            Spread{4, 1, 256},       Spread{4, 2, 64},       Spread{4, 2, 128},
            Spread{8, 1, 256},       Spread{2, 1, 64, true}, Spread{2, 1, 128, true},
            Spread{2, 1, 256, true}, Spread{3, 1, 64, true}, Spread{3, 1, 128, true},
            Spread{3, 1, 256, true}}) {
        if (s.cluster * s.ranges != splits) continue;
        if ((s.apart || s.width == 256) && weight_.type == DType::f8) continue;
        for (int64_t num : {int64_t{1}, int64_t{40}, int64_t{65}, int64_t{200}, c_.n}) {
          if (!slice.take()) continue;
          OnDevice<X> out(none);
          wide({out.data(), type_, num, c_.rows, c_.rows},
               {dx.data(), weight_.type, num, c_.cols, c_.cols}, x_scale.data(), weight_, splits,
               132, nullptr, s, handover());
          check(cudaDeviceSynchronize(), "spread");
          expect_bits(out.get(), 0, num, -1000 * s.cluster - s.width - s.apart);
        }
      }
      // Even shares: twice, since flags are to be left as found.
      for (int width : {32, 64}) {
        for (int sms : {1, 2, 3, 4, 5, 8}) {
          for (int64_t num : {1, width - 1, width, width}) {
            const int64_t first = num == 1 ? 5 : 0;
            const bool shares = can_share(weight_, num, splits, width, sms, handover());
            shared += shares;
            if (!slice.take()) continue;
            if (!shares) {
              expect_bits(product(first, num, sms, width, 1), first, num, width);
              continue;
            }
            OnDevice<X> out(none);
            wide({out.data(), type_, num, c_.rows, c_.rows},
                 {dx.data() + first * c_.cols, weight_.type, num, c_.cols, c_.cols},
                 x_scale.data() + first, weight_, splits, sms, nullptr,
                 Spread{1, 1, width, false, true}, handover());
            check(cudaDeviceSynchronize(), "shares");
            expect_bits(out.get(), first, num, -width);
          }
        }
      }
      for (int width : {32, 64, 128, 192, 256}) {
        const bool f8 = weight_.type == DType::f8;
        if (f8 && width > (splits == 1 ? 192 : 128)) continue;
        for (int64_t num : {int64_t{1}, int64_t{40}, int64_t{65}, int64_t{200}, c_.n}) {
          // So that no tile is cut, and into two parts and four: alone, and behind whole ones.
          for (int sms : {1, 3, 8, 32, 132}) {
            if (!slice.take()) continue;
            expect_bits(product(0, num, sms, width, 1), 0, num, width);
            if (width == 256 && sms > 1)
              expect_bits(product(0, num, sms, width, 2), 0, num, 2 * width);
          }
        }
      }
    }
    ++checks;
    if (shared > 0) return;
    ++failures;
    std::printf("FAIL no shares of %ld x %ld\n", static_cast<long>(c_.rows),
                static_cast<long>(c_.cols));
  }

  // Sums in f32 that are stored by boxes or by fours, where rows of out begin at multiples of 16
  // bytes, and one by one: the same bits, and nothing beside them.
  void run_floats() {
    OnDevice<W> dx(random_values<W>(c_.n * c_.cols, 6, 1));
    OnDevice<float> x_scale(random_values<float>(c_.n, 7, 1));
    const Tensor weight{dw_.data(), weight_.type, c_.rows, c_.cols, c_.cols};
    for (int splits : kNarrowSplits) {
      for (int64_t num : {int64_t{1}, int64_t{40}, int64_t{65}, int64_t{200}, c_.n}) {
        const Tensor from{dx.data(), weight_.type, num, c_.cols, c_.cols};
        auto product = [&](int64_t stride, auto&& run) {
          std::vector<float> poison(static_cast<size_t>(num * stride));
          std::memset(poison.data(), 0xff, poison.size() * sizeof(float));
          OnDevice<float> out(poison);
          run(Tensor{out.data(), DType::f32, num, c_.rows, stride});
          check(cudaDeviceSynchronize(), "floats");
          return out.get();
        };
        auto expect_same = [&](int width, int more, auto&& run) {
          if (!slice.take()) return;
          const int64_t odd = c_.rows + 3, even = c_.rows + 4;
          const std::vector<float> one = product(odd, run), four = product(even, run);
          bool same = true;
          for (int64_t t = 0; t < num; ++t) {
            same = same && std::memcmp(&one[static_cast<size_t>(t * odd)],
                                       &four[static_cast<size_t>(t * even)],
                                       static_cast<size_t>(c_.rows) * sizeof(float)) == 0;
            for (int64_t r = c_.rows; r < even; ++r)
              same = same && std::isnan(four[static_cast<size_t>(t * even + r)]);
          }
          ++checks;
          if (same) return;
          ++failures;
          std::printf("FAIL floats: %ld rows, %ld x %ld, splits %d, width %d, %d\n",
                      static_cast<long>(num), static_cast<long>(c_.rows),
                      static_cast<long>(c_.cols), splits, width, more);
        };
        for (const Spread& s : {Spread{2, 1, 32}, Spread{3, 1, 64}, Spread{4, 1, 128},
                                Spread{4, 2, 32}, Spread{4, 1, 256}, Spread{3, 1, 128, true}}) {
          if (s.cluster * s.ranges != splits) continue;
          if ((s.apart || s.width == 256) && weight_.type == DType::f8) continue;
          expect_same(s.width, s.cluster, [&](const Tensor& to) {
            wide(to, from, x_scale.data(), weight_, splits, 132, nullptr, s, handover());
          });
        }
        for (int width : {32, 64}) {
          for (int sms : {2, 5}) {
            if (!can_share(weight_, num, splits, width, sms, handover())) continue;
            expect_same(width, -sms, [&](const Tensor& to) {
              wide(to, from, x_scale.data(), weight_, splits, sms, nullptr,
                   Spread{1, 1, width, false, true}, handover());
            });
          }
        }
        for (int width : {32, 64, 128, 192, 256}) {
          if (weight_.type == DType::f8 && width > (splits == 1 ? 192 : 128)) continue;
          for (int sms : {1, 3, 8, 32, 132}) {
            for (int blocks = 1; blocks <= (width == 256 && sms > 1 ? 2 : 1); ++blocks) {
              expect_same(width, sms * blocks, [&](const Tensor& to) {
                wide_persistent(boxed_args(to, x_scale.data(), weight_), from, weight, splits, sms,
                                nullptr, {width, blocks});
              });
            }
          }
        }
      }
    }
  }

  // Gates times ups by one kernel: the bits of a product and activate_gated() behind it.
  void run_gated() {
    const int64_t f = c_.rows / 2, stride = f + 8;
    OnDevice<X> dx(random_values<X>(c_.n * c_.cols, 8, 0.25f));
    std::vector<float> poison(static_cast<size_t>(c_.n * std::max(c_.rows, stride)));
    std::memset(poison.data(), 0xff, poison.size() * sizeof(float));  // NaN of every type
    const Tensor weight{dw_.data(), weight_.type, c_.rows, c_.cols, c_.cols};
    for (int splits : kNarrowSplits) {
      for (const Gate& gate : {Gate{Activation::silu, true}, Gate{Activation::silu, false},
                               Gate{Activation::gelu_tanh, true}}) {
        GemmWeight gated = weight_;
        gated.gate = gate;
        for (int64_t n : {1, 8, 40, 64, 100, 200, 300}) {
          if (n > c_.n || !Gate::takes(type_, n)) continue;
          const Tensor from{dx.data(), type_, n, c_.cols, c_.cols};
          OnDevice<float> sums(poison), right(poison);
          const Tensor inner{sums.data(), gate.rounds ? type_ : DType::f32, n, c_.rows, c_.rows};
          wide(inner, from, nullptr, weight_, splits, 132, nullptr);
          activate_gated({{right.data(), type_, n, f, stride}, {}, {}}, inner, gate.activation,
                         nullptr);
          const std::vector<float> want = right.get();
          auto expect = [&](const char* what, int width, int more, auto&& run) {
            if (!slice.take()) return;
            OnDevice<float> out(poison);
            run(Tensor{out.data(), type_, n, f, stride});
            check(cudaDeviceSynchronize(), what);
            ++checks;
            const std::vector<float> got = out.get();
            if (std::memcmp(got.data(), want.data(), got.size() * sizeof(float)) == 0) return;
            ++failures;
            std::printf("FAIL gated %s: n %ld, %ld x %ld, splits %d, width %d, %d\n", what,
                        static_cast<long>(n), static_cast<long>(c_.rows),
                        static_cast<long>(c_.cols), splits, width, more);
          };
          if (n <= kMaxNarrow) {
            expect("narrow", 0, 0, [&](const Tensor& out) {
              narrow(out, from, nullptr, gated, splits, true, nullptr);
            });
          }
          for (int sms : {8, 132}) {
            expect("wide", 0, sms, [&](const Tensor& out) {
              wide(out, from, nullptr, gated, splits, sms, nullptr);
            });
          }
          for (const Spread& s :
               {Spread{2, 1, 32}, Spread{3, 1, 64}, Spread{4, 1, 32}, Spread{4, 2, 32},
                Spread{4, 2, 64}, Spread{4, 1, 128}, Spread{2, 1, 256}, Spread{2, 1, 64, true},
                Spread{3, 1, 128, true}, Spread{3, 1, 256, true}}) {
            if (s.cluster * s.ranges != splits) continue;
            if (!Gate::takes(type_, s.width)) continue;
            expect("spread", s.width, s.cluster, [&](const Tensor& out) {
              wide(out, from, nullptr, gated, splits, 132, nullptr, s, handover());
            });
          }
          for (int width : {32, 64, 128, 192, 256}) {
            if (!Gate::takes(type_, width)) continue;
            for (int sms : {1, 3, 5, 8, 132}) {
              for (int blocks = 1; blocks <= (width == 256 && sms > 1 ? 2 : 1); ++blocks) {
                expect("persistent", width, sms * blocks, [&](const Tensor& out) {
                  wide_persistent(boxed_args(out, nullptr, gated), from, weight, splits, sms,
                                  nullptr, {width, blocks});
                });
              }
              if (!can_share(gated, n, splits, width, sms, handover())) continue;
              expect("shares", width, sms, [&](const Tensor& out) {
                wide(out, from, nullptr, gated, splits, sms, nullptr,
                     Spread{1, 1, width, false, true}, handover());
              });
            }
          }
        }
      }
    }
  }

  template <typename In>
  std::vector<double> reference(const std::vector<In>& x,
                                int64_t stride,
                                const std::vector<float>& x_scale) {
    std::vector<float> w, in;
    for (W v : w_) w.push_back(value(v));
    for (In v : x) in.push_back(value(v));
    std::vector<double> want;
    for (int64_t t = 0; t < c_.n; ++t) {
      for (int64_t r = 0; r < c_.rows; ++r) {
        double sum = 0;
        for (int64_t k = 0; k < c_.cols; ++k) {
          sum += static_cast<double>(in[static_cast<size_t>(t * stride + k)]) *
                 w[static_cast<size_t>(r * c_.cols + k)];
        }
        if (weight_.scale) sum *= scale_[static_cast<size_t>(r)];
        sum *= x_scale[static_cast<size_t>(t)];
        want.push_back(c_.bias ? sum + value(bias_[static_cast<size_t>(r)]) : sum);
      }
    }
    return want;
  }

  void run_all() {
    bool f8 = weight_.type == DType::f8;
    if (c_.n <= kMaxSkinny) {
      compare<X>("skinny", type_, false, [&](Tensor out, Tensor x, const float*) {
        if (can_skinny(x, weight_)) return skinny(out, x, weight_, nullptr);
        ++failures;
        std::printf("FAIL skinny refuses\n");
      });
    }
    if (!has_wgmma()) return;
    if (c_.n > kMaxNarrow) return run_wide();
    for (int splits : kNarrowSplits) {
      std::string name = "narrow, splits " + std::to_string(splits);
      compare<W>(name.c_str(), weight_.type, f8, [&](Tensor out, Tensor x, const float* x_scale) {
        if (can_narrow(x, weight_)) return narrow(out, x, x_scale, weight_, splits, false, nullptr);
        ++failures;
        std::printf("FAIL narrow refuses\n");
      });
    }
    Tensor typed{dw_.data(), weight_.type, c_.n, c_.cols, c_.cols};
    if (c_.n <= kMaxTall && c_.cols <= 1040 && !can_tall(typed, weight_)) {
      ++failures;
      std::printf("FAIL tall refuses\n");
    }
    if (!can_tall(typed, weight_)) return;
    for (int sms : {1, 3, 132}) {
      std::string name = "tall, multiprocessors " + std::to_string(sms);
      compare<W>(name.c_str(), weight_.type, f8, [&](Tensor out, Tensor x, const float* x_scale) {
        tall(out, x, x_scale, weight_, sms, nullptr);
      });
    }
  }

 private:
  Case c_;
  DType type_;
  std::vector<W> w_;
  std::vector<X> bias_;
  std::vector<float> scale_;
  OnDevice<W> dw_;
  OnDevice<X> dbias_;
  OnDevice<float> dscale_;
  GemmWeight weight_;
  std::map<DType, std::vector<double>> want_;  // by the type of x
};

// Weights and x in int8: the sums are exact, and what becomes of them is one expression, so that
// every kernel gives the bits that the host finds.
template <typename X>
class Int8Product {
 public:
  // huge: all codes as large as they get.
  Int8Product(const Case& c, DType type, bool huge)
      : c_(c),
        type_(type),
        w_(codes(c.rows * c.cols, 11, huge ? -128 : 0)),
        x_(codes(c.n * c.cols, 12, huge ? 127 : 0)),
        bias_(random_values<X>(c.rows, 13, 1)),
        scale_(random_values<float>(c.rows, 14, 1e-3f)),
        x_scale_(random_values<float>(c.n, 15, 1e-2f)),
        dw_(w_),
        dx_(x_),
        dbias_(bias_),
        dscale_(scale_),
        dx_scale_(x_scale_) {
    weight_ = {dw_.data(), DType::i8, c.rows,        c.cols, c.bias ? dbias_.data() : nullptr,
               type,       nullptr,   dscale_.data()};
    find_expected();
  }

  void run_all() {
    compare("skinny_int8", can_skinny_int8(typed(), weight_), [&](const Tensor& out) {
      skinny_int8(out, typed(), dx_scale_.data(), weight_, nullptr);
    });
    if (!has_wgmma()) return;
    for (int splits : kNarrowSplits) {
      for (bool in_order : {false, true}) {
        if (c_.n > kMaxNarrow) continue;
        compare("narrow, splits " + std::to_string(splits), can_narrow(typed(), weight_),
                [&](const Tensor& out) {
                  narrow(out, typed(), dx_scale_.data(), weight_, splits, in_order, nullptr);
                });
      }
      for (int sms : {1, 16, 132, 1000}) {
        compare(
            "wide, splits " + std::to_string(splits) + ", multiprocessors " + std::to_string(sms),
            can_wide(typed(), weight_), [&](const Tensor& out) {
              wide(out, typed(), dx_scale_.data(), weight_, splits, sms, nullptr);
            });
      }
    }
    for (int width : {32, 64, 128, 192, 256}) {
      for (int blocks : {1, 2}) {
        if (blocks == 2 && width != 256) continue;
        compare("wide, width " + std::to_string(width) + ", blocks " + std::to_string(blocks),
                can_wide(typed(), weight_), [&](const Tensor& out) {
                  wide_persistent(boxed_args(out, dx_scale_.data(), weight_), typed(),
                                  {dw_.data(), DType::i8, c_.rows, c_.cols, c_.cols}, 1, 132,
                                  nullptr, {width, blocks});
                });
      }
    }
    for (int width : {32, 64}) {
      for (int sms : {1, 2, 5}) {
        if (!can_share(weight_, c_.n, 1, width, sms, handover())) continue;
        compare("wide, shares, width " + std::to_string(width), can_wide(typed(), weight_),
                [&](const Tensor& out) {
                  wide(out, typed(), dx_scale_.data(), weight_, 1, sms, nullptr,
                       Spread{1, 1, width, false, true}, handover());
                });
      }
    }
    if (c_.n > kMaxTall || c_.cols > 2080) return;
    for (int sms : {1, 3, 132}) {
      compare(
          "tall, multiprocessors " + std::to_string(sms), can_tall(typed(), weight_),
          [&](const Tensor& out) { tall(out, typed(), dx_scale_.data(), weight_, sms, nullptr); });
    }
  }

 private:
  // From -128 (or -127 for x) to 127; all `fixed` where that is not 0.
  static std::vector<int8_t> codes(int64_t num, unsigned seed, int fixed) {
    std::mt19937 rng(seed);
    std::vector<int8_t> v;
    const int least = seed == 12 ? -127 : -128;
    for (int64_t i = 0; i < num; ++i) {
      const int code = std::max(least, static_cast<int>(rng() >> 24) - 128);
      v.push_back(static_cast<int8_t>(fixed != 0 ? fixed : code));
    }
    return v;
  }
  Tensor typed() { return {dx_.data(), DType::i8, c_.n, c_.cols, c_.cols}; }

  void find_expected() {
    for (int64_t t = 0; t < c_.n; ++t) {
      for (int64_t r = 0; r < c_.rows; ++r) {
        int32_t sum = 0;
        const int8_t *x = x_.data() + t * c_.cols, *w = w_.data() + r * c_.cols;
        for (int64_t k = 0; k < c_.cols; ++k) sum += x[k] * w[k];
        const float bias = c_.bias ? value(bias_[static_cast<size_t>(r)]) : 0;
        expected_.push_back(std::fma(static_cast<float>(sum) * x_scale_[static_cast<size_t>(t)],
                                     scale_[static_cast<size_t>(r)], bias));
      }
    }
  }

  template <typename Run>
  void compare(const std::string& what, bool takes, Run&& run) {
    if (!slice.take()) return;
    ++checks;
    const int64_t stride = c_.rows + (c_.rows % 8 == 0 ? 8 : 3);
    std::vector<float> poison(static_cast<size_t>(c_.n * stride));
    std::memset(poison.data(), 0xff, poison.size() * sizeof(float));  // NaN of every type
    OnDevice<float> out(poison);
    if (takes) run(Tensor{out.data(), c_.f32_out ? DType::f32 : type_, c_.n, c_.rows, stride});
    check(cudaDeviceSynchronize(), what.c_str());
    const std::vector<float> got = out.get();
    int64_t wrong = 0;
    for (int64_t t = 0; t < c_.n; ++t) {
      for (int64_t r = 0; r < stride; ++r) {
        const auto at = static_cast<size_t>(t * stride + r);
        const float y = c_.f32_out ? got[at] : value(reinterpret_cast<const X*>(got.data())[at]);
        if (r >= c_.rows) {
          wrong += !std::isnan(y);
          continue;
        }
        const float right = expected_[static_cast<size_t>(t * c_.rows + r)];
        wrong += y != (c_.f32_out ? right : value(rounded<X>(right)));
      }
    }
    if (takes && wrong == 0) return;
    ++failures;
    std::printf("FAIL int8 %s: n %ld, %ld x %ld, bias %d, f32 out %d: %s%ld wrong\n", what.c_str(),
                static_cast<long>(c_.n), static_cast<long>(c_.rows), static_cast<long>(c_.cols),
                c_.bias, c_.f32_out, takes ? "" : "refused, ", static_cast<long>(wrong));
  }

  Case c_;
  DType type_;
  std::vector<int8_t> w_, x_;
  std::vector<X> bias_;
  std::vector<float> scale_, x_scale_;
  OnDevice<int8_t> dw_, dx_;
  OnDevice<X> dbias_;
  OnDevice<float> dscale_, dx_scale_;
  GemmWeight weight_;
  std::vector<float> expected_;  // [n, rows]
};

void run_int8_cases(bool small) {
  std::vector<Case> cases{{3, 19, 32, true, true}, {65, 300, 96, false, false}};
  for (int64_t n = 1; n <= 40; ++n) cases.push_back({n, 257, 1056, n % 2 == 0, n % 3 == 0});
  for (int64_t n : {64, 128, 130, 192, 200, 256, 257, 513}) {
    cases.push_back({n, 257, 1056, n % 2 == 0, n % 3 == 0});
    cases.push_back({n, 264, 1056, n % 2 == 0, false});
  }
  if (!small) {
    for (int64_t n : {8, 64, 300}) cases.push_back({n, 1290, 3584, true, false});
  }
  for (const Case& c : cases) {
    Int8Product<__half>(c, DType::f16, false).run_all();
    Int8Product<__nv_bfloat16>(c, DType::bf16, false).run_all();
  }
  Int8Product<__nv_bfloat16>({33, 130, 16384, true, true}, DType::bf16, true).run_all();
}

void run_cases(bool small) {
  std::printf("code for %d, %zu KB of shared memory, clusters %d, wgmma %d\n", target().code,
              target().shared / 1024, target().clusters, target().wgmma);
  std::vector<Case> cases{
      {1, 16, 64, false, true}, {5, 100, 192, true, false}, {9, 300, 16, true, true}};
  for (int64_t n : {8, 11, 16, 24, 32, 33, 64}) {
    cases.push_back({n, 257, 1040, n % 2 == 0, n % 3 == 0});
    if (!small && n % 16 == 0) cases.push_back({n, 1160, 3584, n == 16, n == 32});
  }
  for (int64_t n : {65, 128, 130, 200, 321}) {
    cases.push_back({n, 257, 1040, n % 2 == 0, n % 3 == 0});
    if (!small && n == 200) cases.push_back({n, 1290, 3584, true, false});
  }
  for (const Case& c : cases) {
    Product<__half, __half>(c, DType::f16, DType::f16).run_all();
    Product<__nv_bfloat16, __nv_bfloat16>(c, DType::bf16, DType::bf16).run_all();
    Product<__nv_fp8_e4m3, __half>(c, DType::f8, DType::f16).run_all();
    Product<__nv_fp8_e4m3, __nv_bfloat16>(c, DType::f8, DType::bf16).run_all();
  }
  if (!has_wgmma()) return;
  for (const Case& c : {Case{420, 300, 520, true, false}, Case{520, 1304, 592, true, false},
                        Case{420, 1290, small ? 520 : 4096, false, false}}) {
    Product<__half, __half>(c, DType::f16, DType::f16).run_bits();
    Product<__nv_bfloat16, __nv_bfloat16>(c, DType::bf16, DType::bf16).run_bits();
    if (c.cols % 16 == 0)
      Product<__nv_fp8_e4m3, __nv_bfloat16>(c, DType::f8, DType::bf16).run_bits();
  }
  for (const Case& c : {Case{420, 300, 520, true, true}, Case{300, 1304, 592, true, true}}) {
    Product<__half, __half>(c, DType::f16, DType::f16).run_floats();
    Product<__nv_bfloat16, __nv_bfloat16>(c, DType::bf16, DType::bf16).run_floats();
    if (c.cols % 16 == 0)
      Product<__nv_fp8_e4m3, __nv_bfloat16>(c, DType::f8, DType::bf16).run_floats();
  }
  for (const Case& c : {Case{300, 304, 520, false, false}, Case{300, 1296, 592, false, false}}) {
    Product<__half, __half>(c, DType::f16, DType::f16).run_gated();
    Product<__nv_bfloat16, __nv_bfloat16>(c, DType::bf16, DType::bf16).run_gated();
  }
}

// Microseconds of one of several products in a row, each with a weight of its own.
template <typename Run>
float time_each(int num, const Run& run) {
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "event");
  check(cudaEventCreate(&end), "event");
  float least = 0;
  int rounds = 4;
  for (int round = 0; round < rounds; ++round) {
    check(cudaEventRecord(begin, nullptr), "event");
    for (int i = 0; i < num; ++i) run(i);
    check(cudaEventRecord(end, nullptr), "event");
    check(cudaEventSynchronize(end), "event");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), "event");
    if (round > 0 && (least == 0 || ms < least || rounds > 4)) least = ms;
    // Long ones as a prompt runs them, when the power limit has slowed down the clock.
    if (round == 1 && ms > 1) rounds = std::max(4, static_cast<int>(250 / ms));
  }
  check(cudaEventDestroy(begin), "event");
  check(cudaEventDestroy(end), "event");
  return least * 1000 / static_cast<float>(num);
}

// Enough of random values; the time does not depend on how many there are.
std::vector<__nv_bfloat16> repeated_values(int64_t num, unsigned seed) {
  const auto some = random_values<__nv_bfloat16>(num / 128, seed, 0.5f);
  std::vector<__nv_bfloat16> all;
  for (int i = 0; i < 128; ++i) all.insert(all.end(), some.begin(), some.end());
  return all;
}

struct Shape {
  const char* name;
  int64_t rows, cols;
  int splits[2];  // the first: as --deterministic has it; or 0
};

// One shape at one number of rows: each way to compute it, and cuBLASLt's fastest.
class TimedShape {
 public:
  TimedShape(const Shape& s, int64_t n)
      : s_(s),
        n_(n),
        x_(repeated_values(n * s.cols, 7)),
        out_(std::vector<__nv_bfloat16>(static_cast<size_t>(n * s.rows))),
        from_{x_.data(), DType::bf16, n, s.cols, s.cols},
        to_{out_.data(), DType::bf16, n, s.rows, s.rows} {
    for (int i = 0; i < kCopies; ++i) {
      data_.push_back(std::make_unique<OnDevice<__nv_bfloat16>>(
          repeated_values(s.rows * s.cols, static_cast<unsigned>(i))));
      const GemmWeight w{data_.back()->data(), DType::bf16, s.rows, s.cols, nullptr,
                         DType::bf16,          nullptr,     nullptr};
      weights_.push_back(w);
    }
  }

  void run() {
    std::printf("%-8s %5ld rows: ", s_.name, static_cast<long>(n_));
    time_cublas();
    for (int splits : s_.splits)
      if (splits > 0) time_splits(splits);
    if (s_.splits[0] == 1) time_gated();
    std::printf("\n");
    std::fflush(stdout);
  }

 private:
  static constexpr int kCopies = 6;

  template <typename Run>
  void print(const std::string& name, const Run& run) {
    const float us = time_each(kCopies, [&](int i) { run(weights_[static_cast<size_t>(i)]); });
    const double rate = 2e-6 * static_cast<double>(n_ * s_.rows * s_.cols) / us;
    std::printf("  %s %.1f us (%.0f)", name.c_str(), us, rate);
  }

  void time_splits(int splits) {
    const int sms = target().num_sms;
    std::printf("\n    %d:", splits);
    if (n_ <= kMaxNarrow)
      print("narrow",
            [&](const GemmWeight& w) { narrow(to_, from_, nullptr, w, splits, true, nullptr); });
    print("wide", [&](const GemmWeight& w) {
      wide(to_, from_, nullptr, w, splits, sms, nullptr, {}, handover());
    });
    for (int width : {32, 64}) {
      if (!can_share(weights_[0], n_, splits, width, sms, handover())) continue;
      print("even x " + std::to_string(width), [&](const GemmWeight& w) {
        wide(to_, from_, nullptr, w, splits, sms, nullptr, Spread{1, 1, width, false, true},
             handover());
      });
    }
    for (int width : {64, 128, 256}) {
      if ((splits != 2 && splits != 3) || width >= 2 * n_ || width * 4 < n_) continue;
      print("apart x " + std::to_string(width), [&](const GemmWeight& w) {
        wide(to_, from_, nullptr, w, splits, sms, nullptr, Spread{splits, 1, width, true},
             handover());
      });
    }
    for (int width : {32, 64, 128, 256}) {
      if (splits == 1 || width >= 2 * n_ || width * 4 < n_) continue;
      const bool two = splits == 8 && width < 256;
      const Spread s{two ? 4 : splits, two ? 2 : 1, width};
      print("cluster " + std::to_string(s.cluster) + " x " + std::to_string(width),
            [&](const GemmWeight& w) { wide(to_, from_, nullptr, w, splits, sms, nullptr, s); });
    }
    for (int width : {32, 64, 128, 192, 256}) {
      if (width >= n_ + 128) continue;
      if (width < 128 && width < n_ / 8) continue;
      for (int blocks : {1, 2}) {
        if (blocks == 2 && width != 256) continue;
        print(std::to_string(width) + (blocks == 2 ? " in pairs" : ""), [&](const GemmWeight& w) {
          wide_persistent(boxed_args(to_, nullptr, w), from_,
                          {const_cast<void*>(w.data), DType::bf16, s_.rows, s_.cols, s_.cols},
                          splits, sms, nullptr, {width, blocks});
        });
      }
    }
  }

  // With an activation behind each way, and in one kernel.
  void time_gated() {
    const int sms = target().num_sms;
    const int64_t f = s_.rows / 2;
    OnDevice<__nv_bfloat16> out(std::vector<__nv_bfloat16>(static_cast<size_t>(n_ * f)));
    const Tensor to{out.data(), DType::bf16, n_, f, f};
    auto activate = [&] { activate_gated({to, {}, {}}, to_, Activation::silu, nullptr); };
    auto gated = [](GemmWeight w) {
      w.gate = Gate{};
      return w;
    };
    std::printf("\n    gated:");
    print("activation", [&](const GemmWeight&) { activate(); });
    if (n_ <= Gate::kMaxRows) {
      print("narrow, activation", [&](const GemmWeight& w) {
        narrow(to_, from_, nullptr, w, 1, true, nullptr);
        activate();
      });
      print("narrow",
            [&](const GemmWeight& w) { narrow(to, from_, nullptr, gated(w), 1, true, nullptr); });
    }
    print("wide, activation", [&](const GemmWeight& w) {
      wide(to_, from_, nullptr, w, 1, sms, nullptr, {}, handover());
      activate();
    });
    if (n_ <= Gate::kMaxRows) {
      print("wide", [&](const GemmWeight& w) {
        wide(to, from_, nullptr, gated(w), 1, sms, nullptr, {}, handover());
      });
    }
  }

  // Of the twelve algorithms that it proposes.
  void time_cublas() {
    const Layout w(s_.cols, s_.rows, s_.cols), x(s_.cols, n_, s_.cols), y(s_.rows, n_, s_.rows);
    cublasLtHandle_t handle = nullptr;
    cublasLtMatmulDesc_t op = nullptr;
    cublasLtMatmulPreference_t preference = nullptr;
    cublasLtCreate(&handle);
    cublasLtMatmulDescCreate(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    const cublasOperation_t transposed = CUBLAS_OP_T;
    cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                   sizeof(transposed));
    cublasLtMatmulPreferenceCreate(&preference);
    const size_t bytes = 64 << 20;
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                         &bytes, sizeof(bytes));
    OnDevice<char> workspace{std::vector<char>(bytes)};
    cublasLtMatmulHeuristicResult_t found[12];
    int num = 0;
    cublasLtMatmulAlgoGetHeuristic(handle, op, w.layout, x.layout, y.layout, y.layout, preference,
                                   12, found, &num);
    float least = 0;
    for (int k = 0; k < num; ++k) {
      const float us = time_each(kCopies, [&](int i) {
        const float one = 1, zero = 0;
        cublasLtMatmul(handle, op, &one, weights_[static_cast<size_t>(i)].data, w.layout, x_.data(),
                       x.layout, &zero, out_.data(), y.layout, out_.data(), y.layout,
                       &found[k].algo, workspace.data(), bytes, nullptr);
      });
      if (least == 0 || us < least) least = us;
    }
    std::printf(" cuBLASLt %.1f us (%.0f)", least,
                2e-6 * static_cast<double>(n_ * s_.rows * s_.cols) / least);
    cublasLtMatmulPreferenceDestroy(preference);
    cublasLtMatmulDescDestroy(op);
    cublasLtDestroy(handle);
  }
  struct Layout {
    Layout(int64_t rows, int64_t cols, int64_t stride) {
      cublasLtMatrixLayoutCreate(&layout, CUDA_R_16BF, static_cast<uint64_t>(rows),
                                 static_cast<uint64_t>(cols), stride);
    }
    ~Layout() { cublasLtMatrixLayoutDestroy(layout); }
    Layout(const Layout&) = delete;
    cublasLtMatrixLayout_t layout = nullptr;
  };

  const Shape& s_;
  int64_t n_;
  OnDevice<__nv_bfloat16> x_, out_;
  Tensor from_, to_;
  std::vector<std::unique_ptr<OnDevice<__nv_bfloat16>>> data_;
  std::vector<GemmWeight> weights_;
};

void time_shapes(const std::vector<int64_t>& rows) {
  const Shape shapes[] = {{"gate_up", 37888, 3584, {1, 0}},
                          {"down", 3584, 18944, {4, 8}},
                          {"qkv", 4608, 3584, {3, 4}},
                          {"o", 3584, 3584, {4, 8}},
                          {"gate_up of 14B", 34816, 5120, {1, 0}},
                          {"down of 14B", 5120, 17408, {3, 4}}};
  for (const Shape& s : shapes) {
    for (int64_t n : rows) TimedShape(s, n).run();
  }
}

}  // namespace
}  // namespace sluice::cuda

int main(int argc, char** argv) {
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) {
    std::printf("no GPU\n");
    return 0;
  }
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "--time") {
    std::vector<int64_t> rows;
    for (int i = 2; i < argc; ++i) rows.push_back(std::atol(argv[i]));
    if (rows.empty()) rows = {16, 32, 64, 128, 256, 512, 1024, 2048, 8192};
    for (int64_t n : rows) {
      if (n >= 1 && n <= 65536) continue;
      std::fprintf(stderr, "cuda_product_test: --time takes numbers of rows from 1 to 65536\n");
      return 2;
    }
    sluice::cuda::time_shapes(rows);
    return 0;
  }
  const bool small = mode == "--small";
  if (argc > 2 || (argc == 2 && !small)) {
    std::fprintf(stderr, "cuda_product_test: [--small | --time [ROWS...]]\n");
    return 2;
  }
  sluice::cuda::run_int8_cases(small);
  sluice::cuda::run_cases(small);
  std::printf("%d checks, %d failures\n", sluice::cuda::checks, sluice::cuda::failures);
  return sluice::cuda::failures ? 1 : 0;
}
