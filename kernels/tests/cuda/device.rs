//! Devices: identity, memory, time.

use candle_core::{DType, Device, Tensor};
use tributary_kernels::{Moment, add, cuda};

use crate::kit::{Random, gpu, on, values};

#[test]
fn a_device_says_who_it_is() {
    let count = cuda::count().unwrap();
    assert!(count >= 1);
    let all: Vec<_> = (0..count).map(|ordinal| cuda::identity(ordinal).unwrap()).collect();
    for (i, who) in all.iter().enumerate() {
        assert!(who.memory_bytes > 0 && !who.name.is_empty(), "{who:?}");
        assert!(who.uuid.starts_with("GPU-") && who.uuid.len() == 40, "{who:?}");
        assert!(all[..i].iter().all(|other| other.uuid != who.uuid), "two devices of one name");
    }
    let error = cuda::device(count).unwrap_err();
    assert_eq!(error.to_string(), format!("no CUDA device: number {count} of {count}, counted from 0"));
    assert_eq!(error.exit_code(), 78);
}

#[test]
fn memory_is_counted_and_runs_out() {
    let device = gpu();
    let before = cuda::memory(&device).unwrap();
    assert!(before.free_bytes <= before.total_bytes);
    let error = Tensor::zeros(before.total_bytes as usize + 1, DType::U8, &device).unwrap_err();
    assert!(cuda::is_out_of_memory(&error), "{error}");
    let error = error.context("weights").with_path("model");
    assert!(cuda::is_out_of_memory(&error), "{error}");
    assert_eq!(tributary_kernels::Error::from(error).exit_code(), 71);
    let other = Tensor::zeros(3, DType::U8, &device).unwrap().reshape((4, 4)).unwrap_err();
    assert!(!cuda::is_out_of_memory(&other), "{other}");
}

#[test]
fn the_pool_knows_its_highest_mark() {
    let device = gpu();
    let block = Tensor::zeros(1 << 20, DType::U8, &device).unwrap();
    let with = cuda::pool(&device).unwrap();
    assert!(with.used_bytes >= 1 << 20 && with.used_high_bytes >= with.used_bytes, "{with:?}");
    assert!(with.reserved_bytes >= with.used_bytes, "{with:?}");
    drop(block);
}

#[test]
fn tensors_without_elements() {
    let device = gpu();
    for shape in [vec![0], vec![0, 4], vec![3, 0, 2]] {
        let nothing = cuda::nothing(shape.clone(), DType::BF16, &device).unwrap();
        assert_eq!((nothing.dims(), nothing.dtype()), (shape.as_slice(), DType::BF16));
    }
    assert_eq!(cuda::upload(&[], &device).unwrap().dims(), &[0]);
    let list = cuda::upload(&[7, 5, u32::MAX], &device).unwrap();
    assert_eq!(cuda::download(&list).unwrap().to_vec1::<u32>().unwrap(), [7, 5, u32::MAX]);
}

#[test]
fn moments_follow_one_another() {
    for device in [gpu(), Device::Cpu] {
        let x = on(&Random::new(1).tensor(&[300, 40], DType::F32), &device);
        let first = Moment::now(&device).unwrap();
        add(&x, &x).unwrap();
        let second = Moment::now(&device).unwrap();
        assert!(second.seconds_since(&first).unwrap() >= 0.0);
        assert!(second.seconds_since(&second).unwrap() == 0.0);
    }
}

/// A device that was opened without `cuda::device` gets the kernels with its first launch.
#[test]
fn a_device_that_candle_opened_has_the_kernels() {
    let device = Device::new_cuda_with_stream(0).unwrap();
    let ones = Tensor::ones((3, 8), DType::BF16, &Device::Cpu).unwrap();
    let ones = on(&ones, &device);
    assert!(values(&add(&ones, &ones).unwrap()).iter().all(|&x| x == 2.0));
}
