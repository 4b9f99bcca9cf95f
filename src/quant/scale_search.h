// Searches for the scales of a group of codes: those with the least weighted squared error among
// some twenty candidates. Runs on the host, in double.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

namespace jackscrew {

// Candidate scales lie up to this many tenths of a code to either side of the one that just holds
// the extremes: beyond, errors grow again.
inline constexpr int kScaleTries = 9;

// The weight of each element's squared error where nothing is known of its inputs: large elements
// move the products more, but none is free.
template <size_t N>
std::array<double, N> importance(const float* x) {
  double square = 0.0;
  for (size_t i = 0; i < N; ++i) square += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  const double mean = std::sqrt(square / static_cast<double>(N));
  std::array<double, N> out;
  for (size_t i = 0; i < N; ++i) out[i] = mean + std::abs(static_cast<double>(x[i]));
  return out;
}

// `value`, or the end of [least, most] beyond which it is; `least` for NaN.
inline double clamped(double value, double least, double most) {
  return value > least ? std::min(value, most) : least;
}

inline double nearest_code(double value, double least, double most) {
  // Adding and subtracting 1.5 * 2^52 rounds to nearest, ties to even.
  constexpr double kWhole = 6755399441055744.0;
  return clamped((value + kWhole) - kWhole, least, most);
}

// The number furthest from 0.
template <class Number>
Number extreme_of(const Number* x, size_t count) {
  return *std::max_element(x, x + count,
                           [](Number a, Number b) { return std::abs(a) < std::abs(b); });
}

// The scale with the least weighted error of x [N] ~ scale * number, among those that are tried.
template <size_t N>
struct BestScale {
  const float* x;
  const double* weights;
  double scale = 0.0, gain = -1.0;

  // Tries what is best for the numbers that the scale 1 / inverse gives.
  template <class Nearest>
  void try_inverse(double inverse, const Nearest& nearest) {
    double xq = 0.0, qq = 0.0;  // weighted sums: the best scale for these numbers is their ratio
    for (size_t i = 0; i < N; ++i) {
      const double value = static_cast<double>(x[i]);
      const double q = nearest(value * inverse);
      xq += weights[i] * value * q;
      qq += weights[i] * q * q;
    }
    if (qq > 0.0 && xq * xq / qq > gain) {
      gain = xq * xq / qq;
      scale = xq / qq;
    }
  }
};

// The scale with the least error of x [N] ~ scale * q, q in [-half, half - 1].
template <size_t N>
double symmetric_scale(const float* x, const double* weights, double half) {
  const auto extreme = static_cast<double>(extreme_of(x, N));
  if (extreme == 0.0) return 0.0;
  BestScale<N> best{x, weights};
  for (int step = -kScaleTries; step <= kScaleTries; ++step) {
    best.try_inverse(-(half + 0.1 * step) / extreme,
                     [&](double value) { return nearest_code(value, -half, half - 1.0); });
  }
  return best.scale;
}

struct ScaleAndMinimum {
  double scale = 0.0, minimum = 0.0;  // of x ~ scale * q - minimum; the scale is not negative
};

// Whether minima of either sign can be stored, or none below 0.
enum class Minima : bool { not_negative, any };

// The scale and minimum with the least weighted error for q in [0, most].
template <size_t N>
ScaleAndMinimum asymmetric_scale(const float* x, const double* weights, double most,
                                 Minima minima = Minima::not_negative) {
  const auto [low, high] = std::minmax_element(x, x + N);
  auto least = static_cast<double>(*low), largest = static_cast<double>(*high);
  if (minima == Minima::not_negative) {
    least = std::min(0.0, least);
    largest = std::max(0.0, largest);
  }
  const double range = largest - least;
  if (range == 0.0) return {0.0, -least};
  ScaleAndMinimum best{range / most, -least};
  double best_error = std::numeric_limits<double>::infinity();
  for (int step = -kScaleTries; step <= kScaleTries; ++step) {
    const double inverse = (most + 0.1 * step) / range;
    std::array<double, N> codes;
    double w = 0.0, q = 0.0, qq = 0.0, v = 0.0, vq = 0.0;  // weighted sums
    for (size_t i = 0; i < N; ++i) {
      const double value = static_cast<double>(x[i]);
      codes[i] = nearest_code((value - least) * inverse, 0.0, most);
      w += weights[i];
      q += weights[i] * codes[i];
      qq += weights[i] * codes[i] * codes[i];
      v += weights[i] * value;
      vq += weights[i] * value * codes[i];
    }
    const double determinant = w * qq - q * q;
    if (determinant <= 0.0) continue;
    ScaleAndMinimum tried{(w * vq - v * q) / determinant, -(qq * v - q * vq) / determinant};
    if (minima == Minima::not_negative && tried.minimum < 0.0) {
      tried = {qq > 0.0 ? vq / qq : 0.0, 0.0};
    }
    if (tried.scale < 0.0) continue;
    double error = 0.0;
    for (size_t i = 0; i < N; ++i) {
      const double off = tried.scale * codes[i] - tried.minimum - static_cast<double>(x[i]);
      error += weights[i] * off * off;
    }
    if (error < best_error) {
      best_error = error;
      best = tried;
    }
  }
  return best;
}

}  // namespace jackscrew
