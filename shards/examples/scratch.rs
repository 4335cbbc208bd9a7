use tidegate_shards::driver::*;
use tidegate_shards::log::LogOptions;
fn main() {
    let mut args = std::env::args().skip(1);
    let data = args.next().unwrap();
    let listen = args.next().unwrap();
    let shards: u16 = args.next().unwrap().parse().unwrap();
    let options = ServerOptions {
        data: data.into(), listen: listen.parse().unwrap(), shards: Some(shards), node: 1, data_groups: 32,
        log: LogOptions::default(), sync_method: None, window_bytes: 8 << 20, max_connections: None,
        io_memory: 1 << 20, read_cache_bytes: 16 << 20, pin_cores: false, allow_any_file_system: false,
        version: "scratch".into(),
    };
    let server = Server::start(options, &mut |s, n| eprintln!("{s}: {n:?}")).unwrap();
    println!("listening on {}", server.address);
    while let Ok(r) = server.reports().recv() { eprintln!("{r:?}"); }
}
