//! Traits only: what the layers below the driver ask of the world. The glommio
//! driver and the simulator implement them.

mod buffer;

pub use buffer::BatchBuffer;
