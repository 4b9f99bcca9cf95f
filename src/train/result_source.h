// The weights and states of a run from which a result is written, wherever they are.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "formats/safetensors.h"
#include "session/session.h"

namespace jackscrew {

using ByteSink = std::function<void(std::span<const uint8_t>)>;

class ResultSource {
 public:
  virtual ~ResultSource() = default;
  // As Learner::adapter() and Session::visit().
  virtual nlohmann::json adapter() = 0;
  virtual void visit(const StateVisitor& visitor) = 0;
  virtual Ops& ops() = 0;
  // The model's weights in its order, as the result has them: a format that safetensors has keeps
  // its type, all others become F32.
  virtual std::vector<SafetensorsSpec> weights() = 0;
  // Calls sink(bytes) with consecutive pieces of such a weight's bytes. The values are as exact as
  // they are known: a master is preferred to a rounded weight.
  virtual void write_weight(const std::string& name, const ByteSink& sink) = 0;
};

// The source of a run in one session.
class SessionResult : public ResultSource {
 public:
  explicit SessionResult(Session& session) : session_(session) {}
  nlohmann::json adapter() override;
  void visit(const StateVisitor& visitor) override { session_.visit(visitor); }
  Ops& ops() override { return session_.ops(); }
  std::vector<SafetensorsSpec> weights() override;
  void write_weight(const std::string& name, const ByteSink& sink) override;

 private:
  Session& session_;
};

}  // namespace jackscrew
