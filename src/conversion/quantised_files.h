// The files that quantize writes, for all that rounds their matrices.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "conversion/calibration.h"
#include "conversion/convert.h"
#include "conversion/rounder.h"

namespace jackscrew {

// Returns the tensors that a matrix has become (Rounder::round); none for a weight that is not
// rounded.
using RoundedMatrices = std::function<std::vector<TensorBytes>(const WeightSpec&)>;

class QuantisedFiles {
 public:
  virtual ~QuantisedFiles() = default;

  // All weights, in the order of the files. One without a format is stored in the tensors that its
  // rounder names.
  virtual const std::vector<ModelTensor>& tensors() const = 0;
  // Of all files, with the sizes of matrices that the rounder states by now; the largest is of
  // those of weights.
  virtual FileSizes sizes() const = 0;
  // Deviations from the request, a line each.
  virtual const std::vector<std::string>& notes() const = 0;
  // Writes them to `path`, a directory or a file that ModelOutput has prepared: matrices as
  // `rounded` has them, the rest as write_weights() does. `text` is what they were calibrated on.
  virtual void write(const fs::path& path, const CalibrationSize& text,
                     const RoundedMatrices& rounded, const ProgressStyle& style) const = 0;
};

// A Hugging Face directory with a quantization_config: matrices in the layout of `rounder`, the
// rest in the storage `rest`. sizes() is for a text of that size. All else must outlive it. Throws
// Error(model) for a matrix whose shape such files cannot have.
std::unique_ptr<QuantisedFiles> make_layout_files(const Recipe& recipe, const ModelFiles& files,
                                                  const std::string& rest,
                                                  const LayoutRounder& rounder,
                                                  const CalibrationSize& text);

// The files of a conversion, in which rounded matrices are encoded in their storage format. Recipe
// and files must outlive it.
std::unique_ptr<QuantisedFiles> make_converted_files(const Recipe& recipe, const ModelFiles& files,
                                                     const StorageChoice& choice);

}  // namespace jackscrew
