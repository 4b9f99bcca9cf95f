#include "text/jinja/json.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "text/jinja/failure.h"

namespace jackscrew::jinja {

namespace {

using Json = nlohmann::ordered_json;

[[noreturn]] void refuse_number(const std::string& digits) {
  throw Error(
      ErrorKind::data,
      fmt::format("the number {} is too large: a template may see it, and whole numbers have "
                  "64 bits there",
                  digits),
      "write it in quotes, or leave it out");
}

Value convert(const Json& json, Origin origin, int depth) {
  if (depth > kMaxDepth)
    jackscrew::fail(ErrorKind::data, "JSON nested more than {} deep", kMaxDepth);
  switch (json.type()) {
    case Json::value_t::null:
    case Json::value_t::discarded:
      return None{};
    case Json::value_t::boolean:
      return json.get<bool>();
    case Json::value_t::number_unsigned:
      if (json.get<uint64_t>() > std::numeric_limits<int64_t>::max()) {
        refuse_number(std::to_string(json.get<uint64_t>()));
      }
      return json.get<int64_t>();
    case Json::value_t::binary:
      refuse_number(std::string(json.get_binary().begin(), json.get_binary().end()));
    case Json::value_t::number_integer:
      return json.get<int64_t>();
    case Json::value_t::number_float:
      return json.get<double>();
    case Json::value_t::string:
      return Value::text(json.get<std::string>(), origin);
    case Json::value_t::array: {
      Values items;
      for (const Json& item : json) items.push_back(convert(item, origin, depth + 1));
      return Value::list(std::move(items));
    }
    case Json::value_t::object: {
      std::vector<std::pair<Value, Value>> items;
      for (const auto& [key, item] : json.items()) {
        items.emplace_back(Value::text(key, origin), convert(item, origin, depth + 1));
      }
      return Value::dict(std::move(items));
    }
  }
  return None{};
}

}  // namespace

Value from_json(const Json& json, Origin origin) {
  try {
    return convert(json, origin, 1);
  } catch (const Failure& failure) {
    throw Error(ErrorKind::data, failure.what());
  }
}

}  // namespace jackscrew::jinja
