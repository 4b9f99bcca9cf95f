#include "products/arithmetic.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "products/dense.h"

namespace jackscrew {

namespace {

// Whether the pattern matches the path, or its end after a dot.
bool matches(const std::string& pattern, const WeightSpec& weight) {
  const std::string path = weight.path();
  for (size_t begin = 0;; ++begin) {
    if (fnmatch(pattern.c_str(), path.c_str() + begin, 0) == 0) return true;
    begin = path.find('.', begin);
    if (begin == std::string::npos) return false;
  }
}

[[noreturn]] void refuse_pattern(const std::string& pattern, std::span<const WeightSpec> linears) {
  std::vector<std::string> modules;
  for (const WeightSpec& weight : linears) {
    if (std::find(modules.begin(), modules.end(), weight.module) == modules.end()) {
      modules.push_back(weight.module);
    }
  }
  const auto nearest = nearest_name(pattern, modules);
  throw Error(ErrorKind::usage,
              fmt::format("product_exclude={} matches no linear layer of the model", pattern),
              fmt::format("{}modules: {}; or an end of a path, such as layers.0.*",
                          nearest ? fmt::format("did you mean {}? ", *nearest) : "",
                          fmt::join(modules, ", ")));
}

}  // namespace

Arithmetic::Arithmetic(std::unique_ptr<const Product> product) : product_(std::move(product)) {}

Arithmetic::Arithmetic(std::unique_ptr<const Product> product, std::vector<std::string> excluded,
                       std::span<const WeightSpec> linears)
    : product_(std::move(product)), excluded_(std::move(excluded)) {
  if (!excluded_.empty() && std::string_view(product_->name()) == f32_product().name()) {
    throw Error(ErrorKind::usage,
                fmt::format("product_exclude is {}, but this run multiplies everything in f32",
                            fmt::join(excluded_, ",")),
                "leave product_exclude out, or choose the product of the other weights: product");
  }
  for (const std::string& pattern : excluded_) {
    bool is_known = false;
    bool is_used = false;
    for (const WeightSpec& weight : linears) {
      if (!matches(pattern, weight)) continue;
      is_known = true;
      if (&product_->product_of(weight) != &f32_product()) is_used = true;
    }
    if (!is_known) refuse_pattern(pattern, linears);
    if (is_used) continue;
    throw Error(
        ErrorKind::usage,
        fmt::format("product_exclude={} changes nothing: {} is in f32 already", pattern, pattern),
        "leave it out of product_exclude");
  }
  const auto is_rounded = [&](const WeightSpec& weight) {
    return &product_of(weight) != &f32_product();
  };
  if (!excluded_.empty() && std::ranges::none_of(linears, is_rounded)) {
    throw Error(ErrorKind::usage,
                fmt::format("product_exclude={} leaves nothing to product={}",
                            fmt::join(excluded_, ","), product_->name()),
                "set product=f32 without product_exclude, or exclude less");
  }
  std::vector<WeightSpec> own;
  std::ranges::copy_if(linears, std::back_inserter(own), [&](const WeightSpec& weight) {
    return &product_of(weight) == product_.get();
  });
  product_->check(own, excluded_);
}

const Product& Arithmetic::product_of(const WeightSpec& weight) const {
  const bool excluded =
      std::any_of(excluded_.begin(), excluded_.end(),
                  [&](const std::string& pattern) { return matches(pattern, weight); });
  return excluded ? f32_product() : product_->product_of(weight);
}

DType Arithmetic::activation_dtype() const {
  return excluded_.empty() ? product_->activation_dtype() : f32_product().activation_dtype();
}

}  // namespace jackscrew
