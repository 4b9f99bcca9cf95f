// What f16, as numbers or as scales of blocks, takes from matrices of small values.
#pragma once

namespace jackscrew {

// A matrix that has such a value is not lost in f16.
inline constexpr float kSafeInF16 = 0x1p-16f;
// Whether f16, as numbers or as scales of blocks, may lose a matrix of this largest magnitude. Its
// steps are 2^-24; q8_0 makes 0 of a block that lies below 64 of them (2^-18). Up to 2^-40 a matrix
// is 0 to the model, too, whose norms raise values by a thousand times at most.
constexpr bool may_vanish(float largest) {
  return largest > 0x1p-40f && largest < kSafeInF16;
}
// Such a matrix is lost where rounding takes more than this share of the sum of its squares.
inline constexpr double kVanished = 0.5;

// The squares of a matrix, and those of what rounding takes from it.
class LostSquares {
 public:
  // A value, and what it was rounded to.
  void add(float value, float rounded) {
    const double exact = static_cast<double>(value);
    const double off = static_cast<double>(rounded) - exact;
    squares_ += exact * exact;
    lost_ += off * off;
  }
  bool are_most() const { return lost_ > kVanished * squares_; }

 private:
  double squares_ = 0.0, lost_ = 0.0;
};

}  // namespace jackscrew
