// Weights as they will be, without any values: for plans alone.
#pragma once

#include <map>
#include <string>

#include "quant/stored_tensor.h"
#include "quant/weight_spec.h"

namespace jackscrew {

class PlannedSource : public WeightSource {
 public:
  // As a file has a weight in that format.
  void add_stored(const WeightSpec& weight, FormatPointer format);
  // As one that is made while it is read: nobody looks for bytes of it.
  void add_computed(const WeightSpec& weight, FormatPointer format);

  const StoredTensor* find(std::string_view name) const override;
  std::vector<std::string> names() const override;
  void release(const StoredTensor&) const override {}

 private:
  StoredTensor& add(const WeightSpec& weight, FormatPointer format);

  std::map<std::string, StoredTensor, std::less<>> tensors_;
};

}  // namespace jackscrew
