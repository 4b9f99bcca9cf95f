// The syntax tree of a template. It owns its nodes and does not change once it is parsed.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "text/jinja/value.h"

namespace jackscrew::jinja {

struct Filter;
struct Test;
struct Expression;
struct Statement;

using ExpressionPtr = std::unique_ptr<Expression>;
using Expressions = std::vector<ExpressionPtr>;
using Statements = std::vector<Statement>;

// ---- Expressions

struct Constant {
  Value value;
};
struct Name {
  std::string name;
};
struct ListDisplay {
  Expressions items;
};
struct TupleDisplay {
  Expressions items;
};
struct DictDisplay {
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> items;
};
// object.name
struct Attribute {
  ExpressionPtr object;
  std::string name;
};
// object[key]
struct Item {
  ExpressionPtr object, key;
};
// object[begin:end:step]; each of the three may be null
struct Slice {
  ExpressionPtr object, begin, end, step;
};
struct CallArguments {
  Expressions positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
};
struct Call {
  ExpressionPtr function;
  CallArguments arguments;
};
// subject | name(arguments). In {% filter %} and {% set x | name %} the innermost subject is null.
struct FilterUse {
  ExpressionPtr subject;
  const Filter* filter;
  CallArguments arguments;
};
// subject is name(arguments)
struct TestUse {
  ExpressionPtr subject;
  const Test* test;
  CallArguments arguments;
};
struct Unary {
  enum class Operator : uint8_t { plus, minus, logical_not };
  Operator op;
  ExpressionPtr operand;
};
struct Binary {
  enum class Operator : uint8_t { add, subtract, multiply, divide, floor_divide, modulo, power };
  Operator op;
  ExpressionPtr left, right;
};
struct Logical {
  bool is_and;
  ExpressionPtr left, right;
};
// a ~ b ~ c
struct Concatenation {
  Expressions parts;
};
// a < b <= c
struct Comparison {
  enum class Operator : uint8_t {
    equal,
    not_equal,
    less,
    less_equal,
    greater,
    greater_equal,
    in,
    not_in
  };
  ExpressionPtr first;
  std::vector<std::pair<Operator, ExpressionPtr>> rest;
};
// value if condition else otherwise; otherwise may be null
struct Conditional {
  ExpressionPtr condition, value, otherwise;
};

struct Expression {
  int line;
  std::variant<Constant, Name, ListDisplay, TupleDisplay, DictDisplay, Attribute, Item, Slice, Call,
               FilterUse, TestUse, Unary, Binary, Logical, Concatenation, Comparison, Conditional>
      node;
};

// ---- Statements

// Statements with their own scope: their assignments end with it.
struct Block {
  Statements statements;
  // Names that are undefined when it begins, even if enclosing scopes define them (parser.cc,
  // ScopeNames).
  std::shared_ptr<const std::vector<std::string>> undefined_at_start;
};

// The target of an assignment: a name, an attribute of a namespace, or a tuple of targets.
struct Target {
  std::string name;
  std::string attribute;      // of the namespace `name`; empty: the name itself
  std::vector<Target> parts;  // not empty: a tuple, and the other members are unused
};

struct Output {
  ExpressionPtr value;
};
struct Assignment {
  Target target;
  ExpressionPtr value;
};
// {% set x | filters %}body{% endset %}
struct BlockAssignment {
  Target target;
  ExpressionPtr filters;  // null: none
  Block body;
};
// {% filter filters %}body{% endfilter %}
struct FilterBlock {
  ExpressionPtr filters;
  Block body;
};
struct If {
  std::vector<std::pair<ExpressionPtr, Statements>> branches;
  Statements otherwise;
};
struct For {
  Target target;
  ExpressionPtr items;
  ExpressionPtr condition;  // null: none
  Block body, otherwise;
};
struct LoopControl {
  bool is_break;
};
struct With {
  std::vector<std::pair<Target, ExpressionPtr>> assignments;
  Block body;
};
// The parameters and the body of a macro, or of {% call %}.
struct MacroBody {
  struct Parameter {
    std::string name;
    ExpressionPtr otherwise;  // null: undefined if not passed
  };
  std::string name;
  std::vector<Parameter> parameters;
  bool uses_caller = false;
  Block body;
};
struct MacroDefinition {
  std::unique_ptr<MacroBody> macro;
};
// {% call(parameters) function(arguments) %}body{% endcall %}
struct CallBlock {
  ExpressionPtr call;
  std::unique_ptr<MacroBody> caller;
};
// {% generation %}body{% endgeneration %}
struct GenerationBlock {
  Block body;
};

struct Statement {
  int line;
  std::variant<Output, Assignment, BlockAssignment, FilterBlock, If, For, LoopControl, With,
               MacroDefinition, CallBlock, GenerationBlock>
      node;
};

}  // namespace jackscrew::jinja
