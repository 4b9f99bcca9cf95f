// The functions that every template may call.

#include "text/jinja/failure.h"
#include "text/jinja/runtime.h"
#include "text/jinja/tables.h"

namespace jackscrew::jinja {

namespace {

struct Global {
  std::string_view name;
  Value (*call)(Runtime& runtime, Arguments arguments);
};

class Function : public Object {
 public:
  explicit Function(const Global& global) : global_(global) {}
  std::string_view type_name() const override { return "function"; }
  bool callable() const override { return true; }
  Value call(Runtime& runtime, Arguments arguments) override {
    return global_.call(runtime, std::move(arguments));
  }

 private:
  const Global& global_;
};

Value range(Runtime& runtime, Arguments arguments) {
  constexpr int64_t kMaxItems = 100000;  // the limit of jinja2's sandbox
  const bool has_end = arguments.positional.size() > 1;
  const BoundArguments bound("range", "start ? stop step", std::move(arguments));
  const int64_t begin = has_end ? bound.integer(0, 0) : 0;
  const int64_t end = has_end ? bound.integer(1, 0) : bound.integer(0, 0);
  const int64_t step = bound.integer(2, 1);
  if (step == 0) fail("range: a step of 0");
  Values items;
  for (int64_t i = begin; step > 0 ? i < end : i > end;) {
    if (static_cast<int64_t>(items.size()) == kMaxItems) {
      fault("range: more than {} items", kMaxItems);
    }
    items.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  runtime.count_steps(static_cast<int64_t>(items.size()) / 16);
  return Value::sequence(SequenceKind::range, std::move(items));
}

// The members for dict(...) and namespace(...): from at most one dict, and named arguments.
std::vector<std::pair<Value, Value>> members(const char* what, Arguments arguments) {
  std::vector<std::pair<Value, Value>> items;
  if (arguments.positional.size() > 1) fault("{}: too many arguments", what);
  for (const Value& value : arguments.positional) {
    if (value.as_dict() == nullptr) fail("{} of a {}", what, value.type_name());
    items = value.as_dict()->items;
  }
  for (auto& [name, value] : arguments.named) {
    items.emplace_back(Value::text(name, kTemplate), std::move(value));
  }
  return items;
}

Value dict(Runtime&, Arguments arguments) {
  return Value::dict(members("dict", std::move(arguments)));
}

Value make_namespace(Runtime& runtime, Arguments arguments) {
  const std::shared_ptr<Namespace> space = runtime.make_namespace();
  for (auto& [name, value] : members("namespace", std::move(arguments))) {
    if (name.as_text() == nullptr) fail("namespace with a {} as a name", name.type_name());
    set_variable(space->attributes, name.as_text()->bytes(), std::move(value));
  }
  return Value(space);
}

Value raise_exception(Runtime&, Arguments arguments) {
  const BoundArguments bound("raise_exception", "message", std::move(arguments));
  throw Refusal(to_text(bound[0]).bytes());
}

Value strftime_now(Runtime& runtime, Arguments arguments) {
  const BoundArguments bound("strftime_now", "format", std::move(arguments));
  return Value::text(format_time(runtime.now(), bound.text(0).view()), kTemplate);
}

constexpr Global kGlobals[] = {
    {"range", range},
    {"dict", dict},
    {"namespace", make_namespace},
    {"raise_exception", raise_exception},
    {"strftime_now", strftime_now},
};

}  // namespace

std::optional<Value> find_global(const std::string& name) {
  for (const Global& global : kGlobals) {
    if (global.name == name) return Value(std::make_shared<Function>(global));
  }
  for (const char* unsupported : {"cycler", "joiner", "lipsum"}) {
    if (name == unsupported) fault("{} is not supported", name);
  }
  return std::nullopt;
}

}  // namespace jackscrew::jinja
