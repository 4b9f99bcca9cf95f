#include "text/jinja/interpreter.h"

#include <deque>

#include "text/jinja/expression_parser.h"
#include "text/jinja/failure.h"
#include "text/jinja/operators.h"
#include "text/jinja/tables.h"

namespace jackscrew::jinja {

namespace {

// Limit on nested expressions and statements, including macros that call themselves. A level takes
// a few hundred bytes of stack.
constexpr int kMaxDepthOfCalls = 500;

// The `loop` object. It looks ahead only when asked, so that the loop's condition sees what the
// body has done.
class Loop : public Object {
 public:
  // `depth` is the nesting depth of the items.
  Loop(int depth, Iterator source, std::optional<int64_t> length)
      : Object(depth + 1), source_(std::move(source)), length_(length) {}

  std::optional<Value> next() {
    std::optional<Value> item = peek();
    if (!item) return std::nullopt;
    ahead_.pop_front();
    ++index_;
    previous_ = std::exchange(current_, *item);
    return item;
  }

  std::string_view type_name() const override { return "loop"; }

  std::optional<Value> attribute(const std::string& name) override {
    if (name == "index") return index_ + 1;
    if (name == "index0") return index_;
    if (name == "first") return index_ == 0;
    if (name == "last") return !peek().has_value();
    if (name == "length") return length();
    if (name == "revindex") return length() - index_;
    if (name == "revindex0") return length() - index_ - 1;
    if (name == "depth") return int64_t{1};
    if (name == "depth0") return int64_t{0};
    if (name == "previtem") {
      return index_ == 0 ? Value::undefined("there is no previous item") : previous_;
    }
    if (name == "nextitem") {
      return peek().value_or(Value::undefined("there is no next item"));
    }
    if (name == "cycle" || name == "changed") fault("loop.{} is not supported", name);
    return std::nullopt;
  }

 private:
  std::optional<Value> peek() {
    if (ahead_.empty()) {
      if (auto item = source_()) ahead_.push_back(std::move(*item));
    }
    return ahead_.empty() ? std::nullopt : std::optional(ahead_.front());
  }

  int64_t length() {
    if (!length_) {
      while (auto item = source_()) ahead_.push_back(std::move(*item));
      length_ = index_ + 1 + static_cast<int64_t>(ahead_.size());
    }
    return *length_;
  }

  Iterator source_;
  std::optional<int64_t> length_;
  std::deque<Value> ahead_;
  int64_t index_ = -1;
  Value previous_, current_;
};

}  // namespace

class Macro : public Object {
 public:
  Macro(Interpreter& interpreter, const MacroBody& body)
      : interpreter_(interpreter), body_(body), scope_(interpreter.scope_) {}

  std::string_view type_name() const override { return "macro"; }
  bool callable() const override { return true; }

  Value call(Runtime&, Arguments arguments) override {
    const Interpreter::Enter enter(interpreter_, scope_);
    bind(std::move(arguments));
    return interpreter_.capture([&] { interpreter_.execute(body_.body); });
  }

 private:
  void bind(Arguments arguments) {
    const auto& parameters = body_.parameters;
    if (arguments.positional.size() > parameters.size()) {
      fault("the macro \"{}\" takes {} arguments, not {}", body_.name, parameters.size(),
            arguments.positional.size());
    }
    std::vector<bool> missing(parameters.size());
    for (size_t i = 0; i < parameters.size(); ++i) {
      const std::string& name = parameters[i].name;
      std::optional<Value> value = i < arguments.positional.size()
                                       ? std::move(arguments.positional[i])
                                       : take_named(arguments, name);
      missing[i] = !value;
      interpreter_.set(name, value.value_or(Value::undefined(
                                 fmt::format("the parameter \"{}\" was not passed", name))));
    }
    if (body_.uses_caller) {
      interpreter_.set(
          "caller",
          take_named(arguments, "caller").value_or(Value::undefined("there is no caller")));
    }
    if (!arguments.named.empty()) {
      fault("the macro \"{}\" has no parameter \"{}\"", body_.name, arguments.named.front().first);
    }
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (missing[i] && parameters[i].otherwise != nullptr) {
        interpreter_.set(parameters[i].name, interpreter_.evaluate(*parameters[i].otherwise));
      }
    }
  }

  Interpreter& interpreter_;
  const MacroBody& body_;
  Interpreter::Scope* scope_;
};

Interpreter::Enter::Enter(Interpreter& interpreter, Scope* parent)
    : interpreter_(interpreter),
      outer_(interpreter.scope_),
      scope_(std::make_unique<Scope>(Scope{parent, {}, false})) {
  interpreter.scope_ = scope_.get();
}

Interpreter::Enter::~Enter() {
  interpreter_.scope_ = outer_;
  if (scope_->captured) interpreter_.kept_.push_back(std::move(scope_));
}

Interpreter::Interpreter(const DateTime& now, const Variables& variables)
    : runtime_(now), scope_(&context_) {
  context_.variables = variables;
}

Interpreter::~Interpreter() = default;

Text Interpreter::run(const Block& block) {
  const Enter enter(*this, &context_);
  return capture([&] { execute(block); });
}

template <typename Write>
Text Interpreter::capture(const Write& write) {
  Text text;
  Text* const outer = std::exchange(out_, &text);
  try {
    write();
  } catch (...) {
    out_ = outer;
    throw;
  }
  out_ = outer;
  return text;
}

void Interpreter::keep_scopes() {
  for (Scope* scope = scope_; scope != nullptr; scope = scope->parent) scope->captured = true;
}

Value Interpreter::look_up(const std::string& name) const {
  for (const Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
    if (const Value* value = find_variable(scope->variables, name)) return *value;
  }
  if (auto global = find_global(name)) return std::move(*global);
  return Value::undefined(fmt::format("\"{}\" is undefined", name));
}

void Interpreter::set(const std::string& name, Value value) {
  set_variable(scope_->variables, name, std::move(value));
}

void Interpreter::assign(const Target& target, Value value) {
  if (!target.parts.empty()) {
    const Values items = to_values(value.defined());
    if (items.size() != target.parts.size()) {
      fail("{} values for {} names", items.size(), target.parts.size());
    }
    for (size_t i = 0; i < items.size(); ++i) assign(target.parts[i], items[i]);
  } else if (target.attribute.empty()) {
    set(target.name, std::move(value));
  } else {
    const Value object = look_up(target.name);
    auto* space = dynamic_cast<Namespace*>(object.as_object());
    if (space == nullptr) {
      fail("an assignment to {}.{}, which is not a namespace", target.name, target.attribute);
    }
    set_variable(space->attributes, target.attribute, std::move(value));
  }
}

Value Interpreter::make_macro(const MacroBody& body) {
  keep_scopes();
  return Value(std::make_shared<Macro>(*this, body));
}

// ---- Expressions

struct Interpreter::Evaluate {
  Interpreter& self;

  Value operator()(const Constant& node) const { return node.value; }
  Value operator()(const Name& node) const { return self.look_up(node.name); }
  Value operator()(const ListDisplay& node) const { return Value::list(values(node.items)); }
  Value operator()(const TupleDisplay& node) const { return Value::tuple(values(node.items)); }
  Value operator()(const DictDisplay& node) const {
    std::vector<std::pair<Value, Value>> items;
    for (const auto& [key, value] : node.items) {
      Value evaluated = self.evaluate(*key);
      items.emplace_back(std::move(evaluated), self.evaluate(*value));
    }
    return Value::dict(std::move(items));
  }
  Value operator()(const Attribute& node) const {
    return get_attribute(self.evaluate(*node.object), node.name);
  }
  Value operator()(const Item& node) const {
    const Value object = self.evaluate(*node.object);
    return get_item(object, self.evaluate(*node.key));
  }
  Value operator()(const Slice& node) const {
    const Value object = self.evaluate(*node.object);
    const Value begin = self.evaluate_or(node.begin, None{});
    const Value end = self.evaluate_or(node.end, None{});
    return get_slice(object, begin, end, self.evaluate_or(node.step, None{}));
  }
  Value operator()(const Call& node) const { return call(node, {}); }
  Value operator()(const FilterUse& node) const {
    const Value subject = self.evaluate(*node.subject);
    return call_filter(self.runtime_, *node.filter, subject, self.evaluate(node.arguments));
  }
  Value operator()(const TestUse& node) const {
    const Value subject = self.evaluate(*node.subject);
    return call_test(*node.test, subject, self.evaluate(node.arguments));
  }
  Value operator()(const Unary& node) const { return apply(node.op, self.evaluate(*node.operand)); }
  Value operator()(const Binary& node) const {
    const Value left = self.evaluate(*node.left);
    return apply(node.op, left, self.evaluate(*node.right));
  }
  Value operator()(const Logical& node) const {
    Value left = self.evaluate(*node.left);
    return left.truth() == node.is_and ? self.evaluate(*node.right) : left;
  }
  Value operator()(const Concatenation& node) const {
    Text text;
    for (const auto& part : node.parts) text.append(to_text(self.evaluate(*part)));
    return text;
  }
  Value operator()(const Comparison& node) const {
    Value left = self.evaluate(*node.first);
    for (const auto& [op, operand] : node.rest) {
      Value right = self.evaluate(*operand);
      if (!apply(op, left, right)) return false;
      left = std::move(right);
    }
    return true;
  }
  Value operator()(const Conditional& node) const {
    if (self.evaluate(*node.condition).truth()) return self.evaluate(*node.value);
    return self.evaluate_or(node.otherwise, Value::undefined("an inline if without else"));
  }

  // `caller` is the macro that {% call %} passes.
  Value call(const Call& node, std::optional<Value> caller) const {
    const Value function = self.evaluate(*node.function);
    Arguments arguments = self.evaluate(node.arguments);
    if (caller) arguments.named.emplace_back("caller", std::move(*caller));
    function.defined();
    if (!function.is_callable()) fail("a {} cannot be called", function.type_name());
    return function.as_object()->call(self.runtime_, std::move(arguments));
  }

  Values values(const Expressions& expressions) const {
    Values items;
    for (const auto& item : expressions) items.push_back(self.evaluate(*item));
    return items;
  }
};

Nesting Interpreter::nest() {
  if (depth_ >= kMaxDepthOfCalls) fault("nested more than {} deep", kMaxDepthOfCalls);
  return Nesting(depth_);
}

Value Interpreter::evaluate(const Expression& expression) {
  const Nesting nesting = nest();
  line_ = expression.line;
  runtime_.count_steps(1);
  Value value = std::visit(Evaluate{*this}, expression.node);
  // A filter has counted its result.
  const bool is_known = std::holds_alternative<Constant>(expression.node) ||
                        std::holds_alternative<Name>(expression.node) ||
                        std::holds_alternative<FilterUse>(expression.node);
  runtime_.count_value(value, !is_known);
  return value;
}

Value Interpreter::evaluate_or(const ExpressionPtr& expression, const Value& otherwise) {
  return expression == nullptr ? otherwise : evaluate(*expression);
}

Arguments Interpreter::evaluate(const CallArguments& arguments) {
  Arguments values;
  for (const auto& item : arguments.positional) values.positional.push_back(evaluate(*item));
  for (const auto& [name, item] : arguments.named) {
    values.named.emplace_back(name, evaluate(*item));
  }
  return values;
}

Value Interpreter::evaluate_filters(const Expression& filters, Text text) {
  const Nesting nesting = nest();
  const FilterUse& use = std::get<FilterUse>(filters.node);
  const Value subject = use.subject == nullptr ? Value(std::move(text))
                                               : evaluate_filters(*use.subject, std::move(text));
  line_ = filters.line;
  return call_filter(runtime_, *use.filter, subject, evaluate(use.arguments));
}

// ---- Statements

struct Interpreter::Execute {
  Interpreter& self;

  Flow operator()(const Output& node) const {
    self.out_->append(to_text(self.evaluate(*node.value)));
    return Flow::onward;
  }
  Flow operator()(const Assignment& node) const {
    self.assign(node.target, self.evaluate(*node.value));
    return Flow::onward;
  }
  Flow operator()(const BlockAssignment& node) const {
    Value value;
    const Flow flow = filtered(node.body, node.filters, value);
    if (flow == Flow::onward) self.assign(node.target, std::move(value));
    return flow;
  }
  Flow operator()(const FilterBlock& node) const {
    Value value;
    const Flow flow = filtered(node.body, node.filters, value);
    if (flow == Flow::onward) self.out_->append(to_text(value));
    return flow;
  }
  Flow operator()(const If& node) const {
    for (const auto& [condition, body] : node.branches) {
      if (self.evaluate(*condition).truth()) return self.execute(body);
    }
    return self.execute(node.otherwise);
  }
  Flow operator()(const For& node) const {
    const Value items = self.evaluate(*node.items);
    const auto loop = node.condition == nullptr
                          ? std::make_shared<Loop>(items.depth(), iterate(items), length(items))
                          : std::make_shared<Loop>(items.depth(), conditional(node, iterate(items)),
                                                   std::nullopt);
    bool completed = false;  // as in jinja2, an iteration that breaks does not count
    while (auto item = loop->next()) {
      self.runtime_.count_steps(1);
      const Enter enter(self, self.scope_);
      self.set("loop", Value(loop));
      self.assign(node.target, std::move(*item));
      const Flow flow = self.execute(node.body);
      if (flow == Flow::end_loop) break;
      completed = completed || flow == Flow::onward;
    }
    if (completed || node.otherwise.statements.empty()) return Flow::onward;
    const Enter enter(self, self.scope_);
    return self.execute(node.otherwise);
  }
  Flow operator()(const LoopControl& node) const {
    return node.is_break ? Flow::end_loop : Flow::next_iteration;
  }
  Flow operator()(const With& node) const {
    Values values;
    for (const auto& [target, value] : node.assignments) values.push_back(self.evaluate(*value));
    const Enter enter(self, self.scope_);
    for (size_t i = 0; i < values.size(); ++i) {
      self.assign(node.assignments[i].first, values[i]);
    }
    return self.execute(node.body);
  }
  Flow operator()(const MacroDefinition& node) const {
    self.set(node.macro->name, self.make_macro(*node.macro));
    return Flow::onward;
  }
  Flow operator()(const CallBlock& node) const {
    const Value caller = self.make_macro(*node.caller);
    const Evaluate evaluate{self};
    self.out_->append(to_text(evaluate.call(std::get<Call>(node.call->node), caller)));
    return Flow::onward;
  }
  Flow operator()(const GenerationBlock& node) const {
    const Enter enter(self, self.scope_);
    Text text = self.capture([&] { self.execute(node.body); });
    text.add_origin(kGenerated);
    self.out_->append(text);
    return Flow::onward;
  }

  // Stores the block's output, passed through the filters if any, in `value`; leaves it alone if
  // the block ends by break or continue.
  Flow filtered(const Block& body, const ExpressionPtr& filters, Value& value) const {
    const Enter enter(self, self.scope_);
    Flow flow = Flow::onward;
    Text text = self.capture([&] { flow = self.execute(body); });
    if (flow != Flow::onward) return flow;
    value = filters == nullptr ? Value(std::move(text))
                               : self.evaluate_filters(*filters, std::move(text));
    return flow;
  }

  // The items for which the loop's condition holds; each is tested when it is requested.
  Iterator conditional(const For& node, Iterator items) const {
    self.keep_scopes();
    return [&interpreter = self, &node, items = std::move(items),
            scope = self.scope_]() -> std::optional<Value> {
      while (auto item = items()) {
        const Enter enter(interpreter, scope);
        interpreter.assign(node.target, *item);
        if (!interpreter.evaluate(*node.condition).truth()) continue;
        // As in jinja2, loop.nextitem then sees what was unpacked as a tuple.
        return node.target.parts.empty() ? *item : Value::tuple(to_values(*item));
      }
      return std::nullopt;
    };
  }
};

Interpreter::Flow Interpreter::execute(const Statements& statements) {
  const Nesting nesting = nest();
  for (const Statement& statement : statements) {
    line_ = statement.line;
    runtime_.count_steps(1);
    const Flow flow = std::visit(Execute{*this}, statement.node);
    if (flow != Flow::onward) return flow;
  }
  return Flow::onward;
}

Interpreter::Flow Interpreter::execute(const Block& block) {
  for (const std::string& name : *block.undefined_at_start) {
    set(name, Value::undefined(fmt::format("\"{}\" is undefined", name)));
  }
  return execute(block.statements);
}

}  // namespace jackscrew::jinja
