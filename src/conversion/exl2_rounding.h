// Rounding to EXL2 (formats/exl2_writer.h): column by column as in GPTQ, with the scales that the
// layout can represent.
#pragma once

#include <span>
#include <vector>

#include "conversion/exl2_mixtures.h"
#include "conversion/hessian.h"
#include "formats/exl2_writer.h"

namespace jackscrew {

struct Exl2Rounding {
  Exl2Matrix matrix;  // without `column_order`
  // For each group, the sum of its columns' squared errors, each divided by U_kk before squaring.
  // Together they are trace(D H Dᵀ) of the change D, where H is the damped matrix that U factors.
  std::vector<double> group_errors;
};

// Rounds w, f32 [rows, cols], contiguous, with its columns already in the stored order, and
// replaces it by the values of the codes. `u` is InverseFactor's in the same order. A group's
// scales are chosen when its first column is due, from the weights as they are by then: of
// kTriedScales values of scale_max, each with the best scale code for every row, the one with the
// least cost, a column's squared error weighted by 1 / U_kk². Throws Error(model) for a weight that
// f16 scales cannot reach, Error(non_finite) for one that is not finite. The result does not depend
// on threads.
Exl2Rounding round_exl2(Ops& ops, Memory& memory, const WeightSpec& weight, const Tensor& w,
                        const Tensor& u, const Exl2Groups& groups);
// The bytes that round_exl2() books.
int64_t exl2_rounding_bytes(int64_t rows);
// The most bytes that round_exl2(), and exl2_tensors() of its result, hold in vectors.
int64_t exl2_held_bytes(const WeightSpec& weight, const Exl2Groups& groups);

// Estimates the error of a matrix in each of several mixtures, summed over groups, without rounding
// it once per mixture. A group's error depends far more on its own bits than on those of groups
// before it, so it is taken from the matrix rounded uniformly with these bits. Exact where all
// groups have the same bits; otherwise a little too high, since groups of more bits leave less for
// later ones to compensate. `w` is not changed.
std::vector<double> mixture_errors(Ops& ops, Memory& memory, const WeightSpec& weight,
                                   const Tensor& w, const Tensor& u,
                                   std::span<const Exl2Mixture> mixtures);

}  // namespace jackscrew
