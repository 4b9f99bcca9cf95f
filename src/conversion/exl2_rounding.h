// Rounding to EXL2 (formats/exl2_writer.h): column by column as GPTQ does, with scales that the
// layout can have.
#pragma once

#include <span>
#include <vector>

#include "conversion/exl2_mixtures.h"
#include "conversion/hessian.h"
#include "formats/exl2_writer.h"

namespace jackscrew {

struct Exl2Rounding {
  Exl2Matrix matrix;  // without `columns`
  // Of each group, the sum of what its columns were off by, divided by U_kk, squared: together
  // trace(D H Dᵀ) of the change D, H being the damped matrix that U is of.
  std::vector<double> group_errors;
};

// Rounds w, f32 [rows, cols], contiguous, whose columns stand in the stored order already, and
// which becomes what the codes stand for. `u` is InverseFactor's in the same order. The scales of a
// group are found when its first column is due, of the weights as they are by then: of kTriedScales
// for scale_max the one, with the best scale code of every row, that costs least, each column's
// miss weighted by 1 / U_kk². Throws Error(model) for a weight that f16 scales cannot reach,
// Error(non_finite) for one that is not finite. No bit depends on threads.
Exl2Rounding round_exl2(Ops& ops, Memory& memory, const WeightSpec& weight, const Tensor& w,
                        const Tensor& u, const Exl2Groups& groups);

// What a matrix loses in each of several mixtures, of all groups, without rounding it in each:
// a group's errors depend on its own bits far more than on those before it, so that they are taken
// from the matrix rounded in these bits throughout. Exact where all groups have the same bits; else
// rather too much, since errors of more bits leave those behind less to make up for. `w` stays.
std::vector<double> mixture_errors(Ops& ops, Memory& memory, const WeightSpec& weight,
                                   const Tensor& w, const Tensor& u,
                                   std::span<const Exl2Mixture> mixtures);

}  // namespace jackscrew
