#include "train/result_source.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "quant/plain.h"
#include "quant/row_encoders.h"

namespace jackscrew {

namespace {

// The format of a weight in the result.
const Format& result_format(const Weight& weight) {
  const Format& format = weight.stored_format();
  return safetensors_dtype(format) != nullptr ? format : f32_format();
}

SafetensorsSpec weight_spec(const Weight& weight) {
  return {weight.name(), safetensors_dtype(result_format(weight)), weight.spec().shape()};
}

// The master of a weight that is waiting for its rotation. A weight that always learns has none
// here: it is exported as it is stored, which is what was evaluated.
std::optional<Tensor> master_of(const Parameter& parameter) {
  std::optional<Tensor> master;
  parameter.slot->visit([&](const StateRef& state) {
    if (state.role == StateRole::master) master = state.view;
  });
  return master;
}

// Reads rows [begin, end) as exactly as they are known: from the master if there is one.
void read_rows(Session& session, const Weight& weight, const std::optional<Tensor>& master,
               int64_t begin, int64_t end, std::vector<float>& values) {
  const Tensor out(values.data(), DType::f32, {end - begin, weight.cols()});
  if (!master) {
    session.read_weight(weight, begin, end, out);
    return;
  }
  const Tensor from = master->reshaped({weight.rows(), weight.cols()}).rows(begin, end);
  if (from.dtype() == DType::f32) {
    session.ops().copy(out, from);
    return;
  }
  std::vector<bf16> narrow_values(static_cast<size_t>(out.size()));
  session.ops().copy(Tensor(narrow_values.data(), DType::bf16, {out.rows(), out.cols()}), from);
  std::transform(narrow_values.begin(), narrow_values.end(), values.begin(),
                 [](bf16 value) { return to_float(value); });
}

}  // namespace

nlohmann::json SessionResult::adapter() {
  return session_.learner().adapter();
}

std::vector<SafetensorsSpec> SessionResult::weights() {
  std::vector<SafetensorsSpec> specs;
  for (const auto& parameter : session_.stage().parameters()) {
    specs.push_back(weight_spec(*parameter->weight));
  }
  return specs;
}

void SessionResult::write_weight(const std::string& name, const ByteSink& sink) {
  const auto& parameters = session_.stage().parameters();
  const auto found = std::ranges::find_if(
      parameters, [&](const auto& parameter) { return parameter->weight->name() == name; });
  if (found == parameters.end()) fail(ErrorKind::generic, "no weight {} here", name);
  const Weight& weight = *(*found)->weight;
  const std::optional<Tensor> master = master_of(**found);
  const Format& format = result_format(weight);
  const EncodeRow encode = find_row_encoder(format)->encode;
  const int64_t row_bytes = format.row_bytes(weight.cols());
  const int64_t step = std::min(weight.rows(), panel_rows(weight.cols(), dtype_size(DType::f32)));
  std::vector<float> values(static_cast<size_t>(step * weight.cols()));
  std::vector<uint8_t> bytes(static_cast<size_t>(step * row_bytes));
  for (int64_t begin = 0; begin < weight.rows(); begin += step) {
    const int64_t end = std::min(weight.rows(), begin + step);
    read_rows(session_, weight, master, begin, end, values);
    for (int64_t row = 0; row < end - begin; ++row) {
      encode(values.data() + row * weight.cols(), weight.cols(), bytes.data() + row * row_bytes);
    }
    sink({bytes.data(), static_cast<size_t>((end - begin) * row_bytes)});
  }
}

}  // namespace jackscrew
