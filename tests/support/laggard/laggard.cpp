// `laggard`: two accelerators without hardware, for tests. Built when tests need it; nothing of the package knows of it.
//
// What it guarantees, so that a missing wait shows as wrong numbers, every time:
//
// * The host cannot touch device memory by accident. Addresses of device tensors lie in a window without any access
//   rights; the device's own tasks use another mapping. A host kernel that is given one of them ends in SIGSEGV.
// * Nothing runs when it is called. Kernels and copies are queued on the current stream and run in stream order. A late
//   device (`set_lazy`) runs only what somebody waits for, in the thread that waits: whatever was not waited for has not
//   happened. An eager one runs at once, each stream on a thread of its own, each task delayed at random (`set_slow`).
// * Streams are ordered by events alone, and the host by `synchronize` alone.
// * Memory that was never written, or was freed, is NaN. A freed block may be used again at once on the stream it was
//   allocated on; other streams that use it must be recorded, or they read NaN, or what came after.
// * Copies between the device and pinned or registered host memory run late, too, if non_blocking. From and to pageable
//   memory they block, as CUDA's do. Copies, bytes and synchronisations of the host are counted.
//
// Kernels are those of the CPU, on the device's memory: the numbers are the same to the last bit.

#include "device.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

namespace {

// -- kernels: those of the CPU, later --------------------------------------------------------------------------------

bool is_ours(const Tensor& tensor) { return tensor.defined() && tensor.device().type() == KIND; }

struct Place {  // where a tensor lies. Nothing keeps it alive: the order of the stream has to
  char* data;
  std::vector<int64_t> sizes, strides;
  at::ScalarType dtype;

  explicit Place(const Tensor& t)
      : data(t.numel() ? memory().seen_by_device(t.data_ptr()) : nullptr),
        sizes(t.sizes().vec()),
        strides(t.strides().vec()),
        dtype(t.scalar_type()) {}
  Tensor tensor() const {
    const auto options = at::TensorOptions().dtype(dtype).device(at::kCPU);
    return data ? at::from_blob(data, sizes, strides, options) : at::empty_strided(sizes, strides, options);
  }
};

struct BelowEverything {  // no autograd and no autocast: the plain kernels
  at::AutoDispatchBelowADInplaceOrView below;
  c10::impl::ExcludeDispatchKeyGuard plain{c10::autocast_dispatch_keyset};
};

template <class Change>
IValue with_tensors(const IValue& value, Change change) {  // a value with each of its tensors changed
  if (value.isTensor()) return value.toTensor().defined() ? IValue(change(value.toTensor())) : value;
  if (value.isTensorList()) {
    c10::List<Tensor> list;
    for (const Tensor& tensor : value.toTensorVector()) list.push_back(change(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> list;
    for (const std::optional<Tensor>& tensor : value.toOptionalTensorVector())
      list.push_back(tensor && tensor->defined() ? std::optional<Tensor>(change(*tensor)) : tensor);
    return list;
  }
  return value;
}

using Values = std::vector<IValue>;

bool is_out(const c10::Argument& argument) {
  return argument.kwarg_only() && argument.alias_info() && argument.alias_info()->isWrite();
}

std::function<Values()> deferred(const c10::OperatorHandle& op, const Values& arguments) {
  std::vector<std::function<IValue()>> makers;
  for (size_t i = 0; i < arguments.size(); i++) {
    const IValue& argument = arguments[i];
    if (is_out(op.schema().arguments()[i]) && argument.isTensor()) {  // some kernels make it larger for a while
      const auto dtype = argument.toTensor().scalar_type();
      makers.push_back([dtype] { return IValue(at::empty({0}, at::device(at::kCPU).dtype(dtype))); });
      continue;
    }
    auto places = std::make_shared<std::vector<std::function<Tensor()>>>();
    with_tensors(argument, [&](const Tensor& tensor) {
      if (is_ours(tensor)) {
        Place place(tensor);
        places->push_back([place] { return place.tensor(); });
      } else {
        Tensor copy = tensor.clone();
        places->push_back([copy] { return copy; });
      }
      return tensor;
    });
    const IValue plain = argument.isDevice() && argument.toDevice().type() == KIND ? IValue(at::Device(at::kCPU)) : argument;
    const IValue kept = places->empty() ? plain : IValue();
    const bool is_tensor = argument.isTensor();
    std::vector<bool> present;
    if (argument.isOptionalTensorList())
      for (const std::optional<Tensor>& t : argument.toOptionalTensorVector()) present.push_back(t && t->defined());
    makers.push_back([=]() -> IValue {
      if (places->empty()) return kept;
      if (is_tensor) return (*places)[0]();
      if (present.empty()) {
        c10::List<Tensor> list;
        for (auto& place : *places) list.push_back(place());
        return list;
      }
      c10::List<std::optional<Tensor>> list;
      size_t next = 0;
      for (bool is_there : present) list.push_back(is_there ? std::optional<Tensor>((*places)[next++]()) : std::nullopt);
      return list;
    });
  }
  return [op, makers] {
    BelowEverything plain;
    Values stack;
    for (auto& make : makers) stack.push_back(make());
    op.callBoxed(&stack);
    return stack;
  };
}

std::optional<Values> shapes_of_results(const c10::OperatorHandle& op, const Values& arguments) {
  Values stack;
  for (const IValue& argument : arguments) {
    if (argument.isDevice() && argument.toDevice().type() == KIND) {
      stack.emplace_back(at::Device(at::kMeta));
      continue;
    }
    const bool is_empty = is_out(op.schema().arguments()[stack.size()]);
    stack.push_back(with_tensors(argument, [=](const Tensor& tensor) {
      if (is_empty) return at::empty({0}, tensor.options().device(at::kMeta));
      return is_ours(tensor) ? at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta))
                             : tensor;
    }));
  }
  try {
    BelowEverything plain;
    op.callBoxed(&stack);
  } catch (const std::exception&) {
    return std::nullopt;  // they depend on the numbers, or nobody has written them down
  }
  return stack;
}

Tensor like(const Tensor& shape, int device) {
  return at::empty_strided(shape.sizes(), shape.strides(), shape.options().device(c10::Device(KIND, device)));
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const size_t count = schema.arguments().size();
  const Values arguments(stack->end() - count, stack->end());
  int device = -1;
  for (const IValue& argument : arguments)
    with_tensors(argument, [&](const Tensor& tensor) {
      if (is_ours(tensor)) {
        TORCH_CHECK(device < 0 || device == tensor.device().index(), schema.name(), ": tensors of two devices");
        device = tensor.device().index();
      } else {
        const bool may_be = tensor.dim() == 0 || schema.name().find("aten::index") == 0;
        TORCH_CHECK(may_be, schema.name(), ": a tensor of the host among those of the device");
      }
      return tensor;
    });
  if (device < 0) device = current_device;
  Queue* queue = current_queue(device);
  const auto run = deferred(op, arguments);

  std::vector<int> same(schema.returns().size(), -1);  // which argument a result is
  bool is_in_place = true, gives_tensors = true;
  for (size_t i = 0; i < same.size(); i++) {
    const auto* alias = schema.returns()[i].alias_info();
    for (size_t j = 0; alias && j < count; j++)
      if (schema.arguments()[j].alias_info() && *schema.arguments()[j].alias_info() == *alias) same[i] = int(j);
    TORCH_CHECK(!alias || alias->isWrite(), "laggard: ", schema.name(), " is a view that it does not know");
    is_in_place &= same[i] >= 0 && !is_out(schema.arguments()[same[i]]);
    const auto kind = schema.returns()[i].type()->kind();
    gives_tensors &= kind == c10::TypeKind::TensorType || kind == c10::TypeKind::ListType;
  }

  std::optional<Values> found = is_in_place ? Values() : gives_tensors ? shapes_of_results(op, arguments) : std::nullopt;
  Values results;
  if (!found) {  // the host needs the numbers
    host_waits(end_of(queue));
    Values computed = run();
    for (size_t i = 0; i < same.size(); i++) {
      TORCH_CHECK(same[i] < 0 || !is_out(schema.arguments()[same[i]]), "laggard: ", schema.name(), " is not supported");
      results.push_back(same[i] >= 0 ? arguments[same[i]] : with_tensors(computed[i], [&](const Tensor& tensor) {
        Tensor result = like(tensor, device);
        host_waits(end_of(queue));
        Place(result).tensor().copy_(tensor);
        return result;
      }));
    }
  } else {
    std::vector<Place> places;
    std::vector<size_t> fresh;
    for (size_t i = 0; i < same.size(); i++) {
      if (same[i] < 0) {
        fresh.push_back(i);
        results.push_back(with_tensors((*found)[i], [&](const Tensor& shape) {
          Tensor result = like(shape, device);
          places.emplace_back(result);
          return result;
        }));
        continue;
      }
      results.push_back(arguments[same[i]]);
      if (is_out(schema.arguments()[same[i]])) {
        const Tensor out = arguments[same[i]].toTensor();
        if (out.sizes() != (*found)[i].toTensor().sizes()) out.resize_((*found)[i].toTensor().sizes());
        fresh.push_back(i);
        places.emplace_back(out);
      }
    }
    put(queue, [run, places, fresh] {
      Values computed = run();
      at::NoGradGuard without;
      size_t next = 0;
      for (size_t i : fresh)
        with_tensors(computed[i], [&](const Tensor& tensor) {
          const Tensor place = places[next++].tensor();
          if (tensor.numel()) place.copy_(tensor);  // some give nothing back where they could
          return tensor;
        });
    });
    std::lock_guard<std::mutex> held(lock);
    counters.kernels++;
  }
  torch::jit::drop(*stack, count);
  for (IValue& result : results) stack->push_back(std::move(result));
}

// -- what cannot be a kernel of the CPU ------------------------------------------------------------------------------

Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
             std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(device.value_or(c10::Device(KIND, current_device)));
  return at::detail::empty_generic(size, &device_allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   dtype.value_or(at::get_default_dtype_as_scalartype()), format);
}

Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(device.value_or(c10::Device(KIND, current_device)));
  return at::detail::empty_strided_generic(size, stride, &device_allocator,
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           dtype.value_or(at::get_default_dtype_as_scalartype()));
}

const Tensor& resize_(const Tensor& self, c10::IntArrayRef size, std::optional<at::MemoryFormat>) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(size);
  const size_t nbytes = (self.numel() + self.storage_offset()) * self.element_size();
  if (nbytes > self.storage().nbytes()) {
    const c10::DeviceGuard guard(self.device());
    TORCH_CHECK(!self.storage().nbytes(), "laggard: only what is empty can grow");
    self.storage().set_data_ptr_noswap(device_allocator.allocate(nbytes));
    self.storage().set_nbytes(nbytes);
  }
  return self;
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  BelowEverything plain;
  const Tensor source = from.expand_as(to);
  if (is_ours(from) && is_ours(to)) {
    Queue *here = current_queue(from.device().index()), *there = current_queue(to.device().index());
    const Place a(source), b(to);
    if (here != there) {
      const Mark before = end_of(there);
      put(here, [before] { until(before); });
    }
    const Mark end = put(here, [a, b] { BelowEverything plain; b.tensor().copy_(a.tensor()); });
    if (here != there) put(there, [end] { until(end); });
    std::lock_guard<std::mutex> held(lock);
    counters.kernels++;
    return to;
  }
  const bool is_down = is_ours(from);
  const Tensor& host = is_down ? to : from;
  Queue* queue = current_queue((is_down ? from : to).device().index());
  const bool is_late = non_blocking && is_pinned(host.data_ptr());
  const auto view = at::from_blob(host.data_ptr(), host.sizes(), host.strides(), host.options().requires_grad(false));
  Mark end;
  if (is_down) {
    const Place a(source);
    end = put(queue, [a, view] { BelowEverything plain; view.copy_(a.tensor()); });
  } else {
    const Place b(to);
    const Tensor read = is_late ? view : view.clone();
    end = put(queue, [b, read] { BelowEverything plain; b.tensor().copy_(read); });
  }
  {
    std::lock_guard<std::mutex> held(lock);
    (is_down ? counters.copies_down : counters.copies_up)++;
    (is_down ? counters.bytes_down : counters.bytes_up) += int64_t(host.nbytes());
  }
  if (!is_late) host_waits(end);
  return to;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar local_scalar_dense(const Tensor& self) {
  host_waits(end_of(current_queue(self.device().index())));
  return at::_local_scalar_dense(Place(self).tensor());
}

Tensor as_strided(const Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}

void record_stream(Tensor& self, c10::Stream stream) {
  Guard().recordDataPtrOnStream(self.storage().data_ptr(), stream);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("resize_", &resize_);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar_dense);
  m.impl("as_strided", &as_strided);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("record_stream", &record_stream);
  m.impl("set_.source_Storage_storage_offset", &at::native::set_storage_cpu_);
  m.impl("set_.source_Storage", [](Tensor& self, at::Storage source) -> Tensor& { return at::native::set_(self, source); });
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  c10::SetAllocator(KIND, &device_allocator);
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  m.def("set_lazy", [](bool lazy) {
    std::lock_guard<std::mutex> held(lock);
    is_lazy = lazy;
    for (auto& of_device : queues)
      for (Queue* queue : of_device) queue->to_do.notify_one();
  });
  m.def("set_slow", [](int microseconds, int seed) {
    std::lock_guard<std::mutex> held(lock);
    slow_us = microseconds;
    chance.seed(seed);
  });
  m.def("counters", [] {
    std::lock_guard<std::mutex> held(lock);
    return std::map<std::string, int64_t>{
        {"copies_down", counters.copies_down}, {"copies_up", counters.copies_up},
        {"bytes_down", counters.bytes_down},   {"bytes_up", counters.bytes_up},
        {"kernels", counters.kernels},         {"synchronisations", counters.synchronisations}};
  });
  m.def("register_host", &register_host);
  m.def("unregister_host", &unregister_host);
  m.def("refuse", [](bool pinning, bool registering) {
    refuses_pinning = pinning;
    refuses_registering = registering;
  });
}
