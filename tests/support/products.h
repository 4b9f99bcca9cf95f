// Products by name, with their options' defaults or others.
#pragma once

#include <initializer_list>
#include <memory>
#include <string_view>
#include <utility>

#include "products/product.h"

namespace jackscrew {

inline std::unique_ptr<const Product> make_product(
    std::string_view name, const Ops& ops,
    std::initializer_list<std::pair<const char*, const char*>> values = {}) {
  const ProductEntry& entry = find_product(name);
  OptionSet options;
  options.add({entry.name, entry.options});
  for (const auto& [option, value] : values) options.set(option, value, "test");
  return entry.make(options, ops);
}

}  // namespace jackscrew
